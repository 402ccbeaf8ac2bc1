//! One test, so that nothing else allocates meanwhile.

use super::*;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

#[test]
fn heap_use_separates_what_stays_from_the_peak() {
    let before = vec![0_u8; 500];
    let (kept, used) = used_by(|| {
        drop(before);
        let mut kept = Vec::with_capacity(1000);
        drop(std::hint::black_box(vec![1_u8; 100_000]));
        kept.reserve_exact(3000);
        std::hint::black_box(vec![0_u8; 7]).len() + std::hint::black_box::<Vec<u8>>(kept).capacity()
    });
    assert_eq!(kept, 3007);
    assert_eq!(used.live_bytes, -500);
    assert_eq!(used.peak_bytes, 100_000 + 1000 - 500);
    let (kept, used) = used_by(|| Box::new([1_u8; 64]));
    assert_eq!((used.live_bytes, used.peak_bytes), (64, 64));
    drop(kept);
}
