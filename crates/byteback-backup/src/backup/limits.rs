//! Bounds of what a backup searches and remembers.

/// Bounds of what a backup searches and remembers. Only tests have a reason to change them: they
/// reach a small bound with small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// Shortest file, in bytes, that is looked for all over the server when it is not found at its
    /// path; shorter ones are sent.
    pub moved_len_min_bytes: u64,
    /// Most requests for one listing of the server's tree.
    pub listing_pages_max: usize,
    /// Most large files that are remembered of one listing.
    pub listing_files_max: usize,
    /// Most pieces of a file that was found at the server; a file of more is sent whole.
    pub extents_max: usize,
    /// Longest file, in bytes, whose leaves are kept while the server is asked about them.
    pub leaves_kept_len_max_bytes: u64,
    /// Fewest literals, in bytes, that are gathered for a second look.
    pub looked_for_len_min_bytes: usize,
    /// Shortest file, in bytes, of which block checksums are kept: there may be very many shorter
    /// ones, and they are soon sent.
    pub summed_len_min_bytes: u64,
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self {
            moved_len_min_bytes: 4 << 20,
            listing_pages_max: 1000,
            listing_files_max: 1 << 16,
            extents_max: 1 << 18,
            leaves_kept_len_max_bytes: 4 << 30,
            looked_for_len_min_bytes: 1 << 20,
            summed_len_min_bytes: 64 * 1024,
        }
    }
}
