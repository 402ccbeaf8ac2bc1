use super::*;

#[test]
fn trimming_looks_ever_more_rarely_at_what_is_always_new() {
    let trimming = Trimming::default();
    let looked = |trimming: &Trimming, fruit| {
        let look = trimming.is_worth_a_look();
        if look {
            trimming.learn(fruit);
        }
        look
    };
    let looks = (0..1000).filter(|_| looked(&trimming, false)).count();
    assert!((16..40).contains(&looks), "{looks}");
    // Once it pays again, every write is compared.
    while !looked(&trimming, true) {}
    assert!((0..100).all(|_| looked(&trimming, true)));
}
