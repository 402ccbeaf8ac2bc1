//! How hard the literals of a batch are compressed.
//!
//! A plain function of what is known of the link and the machine, by the same account as the cost
//! of finding a change ([`super::cost`]): the processor's time for a byte, the link's time for the
//! compressed rest, and the cost of keeping it ([`KEPT_NS`]). So a fast link alone does
//! not make anyone store uncompressed bytes; incompressible data is found out by samples, frame by
//! frame (`byteback_delta::Effort`, `FrameEncoder`), and costs nearly nothing at any level.
//!
//! With the figures below and a processor of its own: little work from about 36 MB/s on, much below
//! 2 MB/s, zstd's default between. The figures do not follow the actual content: contents differ
//! more than levels do, but levels keep their order on nearly all of them.

use super::cost::Conditions;
use byteback_delta::Effort;

/// The cost of keeping a byte, in nanoseconds: the server writes it, syncs it, and reads it some
/// times. (Sending a whole file again is worth more to avoid, `per_byte::STORE`; here a byte or two
/// of a hundred are at stake.)
const KEPT_NS: f64 = 10.0;

/// The cost of an effort, and the share of bytes that it leaves.
struct Figures {
    /// Nanoseconds for a byte.
    ns: f64,
    /// Compressed length of a byte.
    left: f64,
}

/// Measured with 100 MB of files of /usr/share/doc and the like in frames of 256 KiB, on the
/// machine of docs/benchmarks.md: the part `machine` of `byteback-bench skysync` prints them.
fn figures(effort: Effort) -> Figures {
    match effort {
        Effort::Fast => Figures { ns: 1.17, left: 0.5674 },
        Effort::Standard => Figures { ns: 1.50, left: 0.5586 },
        Effort::Thorough => Figures { ns: 6.53, left: 0.5480 },
    }
}

/// The effort that costs least; of equal ones the least.
pub(in crate::backup) fn effort(conditions: &Conditions) -> Effort {
    let share = conditions.processor_share.clamp(0.01, 1.0);
    let byte_ns = 1e9 / conditions.link_bytes_per_s.max(1) as f64 + KEPT_NS;
    let cost = |effort: &Effort| {
        let Figures { ns, left } = figures(*effort);
        ns / share + left * byte_ns
    };
    let cheapest = Effort::ALL
        .into_iter()
        .min_by(|one, other| cost(one).total_cmp(&cost(other)));
    cheapest.unwrap_or_default()
}

#[cfg(test)]
mod tests;
