//! A bundle of short contents as any server may send it.
#![no_main]

use byteback_delta::bundle::{self, CONTENTS_MAX, ShortContent};

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    // Mutated heads mostly have wrong checksums.
    let mut stream = data.to_vec();
    if let Some(count) = data.get(10..12) {
        let head_len = 12 + 4 * usize::from(u16::from_le_bytes([count[0], count[1]]));
        if let Some(head) = data.get(..head_len) {
            let crc = crc32c::crc32c(head).to_le_bytes();
            if let Some(place) = stream.get_mut(head_len..head_len + 4) {
                place.copy_from_slice(&crc);
            }
        }
    }
    let Ok(contents) = bundle::read(&stream[..], CONTENTS_MAX) else {
        return;
    };
    for content in contents.iter().flatten() {
        let mut end = 0;
        for (offset, bytes) in content.data() {
            assert!(end <= offset && !bytes.is_empty());
            end = offset + bytes.len() as u64;
        }
        assert!(end <= content.len_bytes());
        let mut made = vec![7; 100];
        content.write_into(&mut made).expect("memory");
        assert!(made == content.to_bytes());
    }
    let mut again = Vec::new();
    bundle::write(&contents, &mut again).expect("memory");
    let again = bundle::read(&again[..], CONTENTS_MAX).expect("ours");
    let bytes = |contents: &[Option<ShortContent>]| -> Vec<Option<Vec<u8>>> {
        contents
            .iter()
            .map(|content| content.as_ref().map(ShortContent::to_bytes))
            .collect()
    };
    assert!(bytes(&again) == bytes(&contents), "another content comes back");
}

fn seeds() -> Vec<Vec<u8>> {
    let mut holey = ShortContent::zeros(9000);
    holey.push(100, &[1; 300]);
    holey.push(5000, b"data");
    let mut full = ShortContent::zeros(40);
    full.push(0, &[7; 40]);
    let contents = [Some(full), None, Some(holey), Some(ShortContent::zeros(0))];
    [&contents[..], &contents[..1], &[]]
        .map(|contents| {
            let mut stream = Vec::new();
            bundle::write(contents, &mut stream).expect("memory");
            stream
        })
        .into()
}
