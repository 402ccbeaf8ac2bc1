//! What programs pass through ioctls.
#![no_main]

use byteback_ioctl::abi::{DeltaClose, DeltaGetdiff, DeltaOpen, DeltaRead, Layout};

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    same::<DeltaOpen>(data);
    same::<DeltaGetdiff>(data);
    same::<DeltaRead>(data);
    same::<DeltaClose>(data);
}

fn same<L: Layout>(data: &[u8]) {
    assert_eq!(
        L::decode(data).is_some(),
        data.len() == L::SIZE,
        "another length is taken"
    );
    if let Some(value) = L::decode(data) {
        assert_eq!(value.encode(), data, "other bytes come back");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    [DeltaOpen::SIZE, DeltaGetdiff::SIZE, DeltaRead::SIZE, DeltaClose::SIZE]
        .map(|len| vec![1; len])
        .into()
}
