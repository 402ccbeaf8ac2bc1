//! The comparison of literals with what programs overwrote, after whole blocks of them were looked
//! up elsewhere: short matches would take the blocks apart.

use super::FoundFile;
use byteback_delta::find::Packed;

impl FoundFile<'_, '_, '_> {
    /// Compares the literals that were not looked for yet, if there is anything to compare with.
    pub(super) fn compare(&mut self) {
        let Some(comparison) = self.overwritten.map(|overwritten| overwritten.comparison()) else {
            return;
        };
        self.divide(|_, range, bytes| {
            let (found, stats) = comparison.find(&std::iter::once(range).collect::<Packed>(), bytes);
            (stats.copied_bytes > 0).then_some(found)
        });
    }
}
