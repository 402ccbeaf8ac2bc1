//! Times of every length survive a round trip.

use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Time {
    #[serde(with = "super")]
    ns: i128,
}

/// An internally tagged type, which serde buffers before it knows the variant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Time(Time),
}

#[test]
fn times_of_any_length_come_back_from_json() {
    let ends = [i64::MIN, -1, 0, 1_700_000_000_123_456_789, i64::MAX].map(i128::from);
    let beyond = [
        i128::from(i64::MAX) + 1,
        i128::from(i64::MIN) - 1,
        16_283_289_600_000_000_001,
        i128::MAX,
        i128::MIN,
    ];
    for ns in ends.into_iter().chain(beyond) {
        let text = serde_json::to_string(&Tagged::Time(Time { ns })).unwrap();
        let digits = if i64::try_from(ns).is_ok() {
            ns.to_string()
        } else {
            format!("\"{ns}\"")
        };
        assert_eq!(text, format!("{{\"kind\":\"Time\",\"ns\":{digits}}}"));
        assert_eq!(
            serde_json::from_str::<Tagged>(&text).unwrap(),
            Tagged::Time(Time { ns })
        );
    }
}

#[test]
fn times_that_are_none_are_refused() {
    for text in [
        "\"\"",
        "\"1.5\"",
        "1.5",
        "null",
        "\"170141183460469231731687303715884105728\"",
    ] {
        let read = serde_json::from_str::<Time>(&format!("{{\"ns\":{text}}}"));
        assert!(read.is_err(), "{text}: {read:?}");
    }
}
