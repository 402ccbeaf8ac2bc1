use super::*;

const IDLE: Duration = Duration::from_secs(60);

fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn an_answer_may_begin_late_and_be_short_or_come_in_bursts() {
    let mut progress = Progress::default();
    progress.came(0, s(50), IDLE).unwrap();
    progress.came(1, s(59), IDLE).unwrap();
    progress.came(100, s(59), IDLE).unwrap();
    let mut progress = Progress::default();
    progress.came(1, s(1), IDLE).unwrap();
    for _ in 0..1000 {
        progress.came(PROGRESS_LEN_MIN / 2, s(29), IDLE).unwrap();
    }
}

#[test]
fn client_ends_a_trickling_answer_after_the_idle_timeout() {
    let mut progress = Progress::default();
    let mut waited = 0;
    let error = loop {
        match progress.came(1, s(1), IDLE) {
            Ok(()) => waited += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(waited, 61);
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "only 62 bytes of the answer came in 61 s");
}
