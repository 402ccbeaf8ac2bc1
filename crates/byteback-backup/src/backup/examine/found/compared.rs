//! The comparison of literals with what programs overwrote, after whole blocks of them were looked
//! up elsewhere: short matches would take the blocks apart.

use super::super::overwritten::Overwritten;
use super::FoundFile;
use byteback_delta::find::Packed;

impl<'a> FoundFile<'a, '_, '_> {
    /// The bytes that were overwritten, if literals are to be compared with them. A server whose
    /// version has another length has something else than the tree takes it for.
    pub(super) fn comparable(&self) -> Option<&'a Overwritten> {
        self.overwritten.filter(|overwritten| overwritten.is_of(self.base_len))
    }

    /// Compares the literals that were not looked for yet, if there is anything to compare with.
    pub(super) fn compare(&mut self) {
        let overwritten = self.comparable();
        let Some(overwritten) = overwritten.filter(|_| self.unlooked().next().is_some()) else {
            return;
        };
        let comparison = overwritten.comparison();
        self.divide(|_, range, bytes| {
            let (found, stats) = comparison.find(&std::iter::once(range).collect::<Packed>(), bytes);
            (stats.copied_bytes > 0).then_some(found)
        });
    }
}
