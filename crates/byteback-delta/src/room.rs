//! Memory for a list whose final length is announced.
//!
//! A list in a stream announces its length. The announcement may be a lie, so memory is taken as
//! elements arrive. A vector's own growth leaves up to half of its capacity unused; with
//! [`make_room`] a list that arrived whole has no spare capacity.

/// A list gets its whole announced capacity once this many times the elements that came reach the
/// announced number.
const AHEAD: usize = 4;

/// Makes room for `more` elements in a list that is announced to end with `announced` elements. The
/// capacity never exceeds the announcement unless more elements than that come, and it is at most
/// [`AHEAD`] times the number of elements that came.
pub(crate) fn make_room<T>(list: &mut Vec<T>, more: usize, announced: u64) {
    let needed = list.len().saturating_add(more);
    if needed <= list.capacity() {
        return;
    }
    // A list that does not fit into memory never gets that long.
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    let room = match needed.saturating_mul(AHEAD) {
        ahead if ahead >= announced => announced.max(needed),
        // Only half of that, so that the last move copies less than half of the list.
        ahead => ahead / 2,
    };
    list.reserve_exact(room - list.len());
}

#[cfg(test)]
mod tests;
