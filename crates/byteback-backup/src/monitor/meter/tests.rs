//! The total is reached and never exceeded, whatever the work reports.

use byteback_host::random::SplitMix64;

use super::*;

/// Everything that a monitor received.
#[derive(Debug, Default, PartialEq, Eq)]
struct EventTotals {
    wholes: Vec<(u64, u64)>,
    nodes: u64,
    bytes: u64,
}

#[derive(Default)]
struct RecordingMonitor(Mutex<EventTotals>);

impl Monitor for RecordingMonitor {
    fn event(&self, event: Event<'_>) {
        let mut heard = self.0.lock().unwrap();
        match event {
            Event::Totals { files, bytes } => heard.wholes.push((files, bytes)),
            Event::FileDone { .. } => heard.nodes += 1,
            Event::BytesRead(bytes) | Event::BytesSkipped(bytes) => heard.bytes += bytes,
            _ => {}
        }
    }
}

#[test]
fn meter_reaches_the_total_and_never_exceeds_it() {
    for seed in 0..500 {
        let mut random = SplitMix64::new(seed);
        let heard = RecordingMonitor::default();
        let meter = Meter::new(&heard);
        let foreseen: Vec<u64> = (0..random.below(20)).map(|_| random.below(1000)).collect();
        let (nodes, bytes) = (foreseen.len() as u64, foreseen.iter().sum());
        meter.foresee(nodes, Some(bytes));
        // Some never come, others were not foreseen, and of each more or less is read than was
        // foreseen.
        let came = random.below(25);
        for number in 0..came {
            meter.begin_node(foreseen.get(number as usize).copied().unwrap_or(random.below(1000)));
            for _ in 0..random.below(4) {
                meter.event(Event::BytesRead(random.below(600)));
                let done = heard.0.lock().unwrap();
                assert!(done.bytes <= bytes && done.nodes <= nodes, "seed {seed}");
            }
            meter.end_node(None);
            let so_far: u64 = foreseen.iter().take(number as usize + 1).sum();
            let done = heard.0.lock().unwrap().bytes;
            assert!(
                done >= so_far.min(bytes),
                "seed {seed}: a node that is done counts in full"
            );
        }
        meter.end();
        assert_eq!(
            *heard.0.lock().unwrap(),
            EventTotals {
                wholes: vec![(nodes, bytes)],
                nodes,
                bytes
            },
            "seed {seed}"
        );
    }
}

#[test]
fn meter_holds_nothing_back_without_a_total() {
    let heard = RecordingMonitor::default();
    let meter = Meter::new(&heard);
    meter.begin_node(10);
    meter.event(Event::BytesRead(100));
    meter.end_node(None);
    meter.end();
    let all = EventTotals {
        wholes: Vec::new(),
        nodes: 1,
        bytes: 100,
    };
    assert_eq!(*heard.0.lock().unwrap(), all);
}
