//! The whole log against a model: a fake tree that is changed through the gate, and consumers whose
//! pictures are compared byte for byte with what the log reports.

mod crowd;
mod damage;
mod every_sync;
mod holders;
mod process;
mod random;
mod scenarios;
mod threads;
mod tree;
mod world;

use std::sync::Arc;

use byteback_host::clock::SimClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;

use super::*;

/// Not a whole second: such times are taken for those of a file system that keeps no others.
const START_NS: i64 = 1_700_000_000_123_456_789;

/// A log on `disk`, with a tiny intent file.
fn open(disk: &SimDisk, clock: &Arc<SimClock>, half_sectors: u64) -> Result<Log> {
    let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
    Log::open_with(
        &dir,
        Arc::clone(clock) as Arc<dyn Clock>,
        &SimRandomness::new(7),
        LogOptions {
            intent_half_sectors: half_sectors,
            ..LogOptions::default()
        },
    )
}
