//! Room in memory for a list of which is known how long it becomes.
//!
//! A list in a stream announces its length, which may be a lie, so memory is taken as elements
//! come. A vector's own way to grow leaves up to half of it unused, and is known to end there: with
//! [`make_room`] a list that came whole has no room to spare.

/// A list takes all that it was announced to need as soon as so many times what came is as much.
const AHEAD: usize = 4;

/// Makes room for `more` elements of a list that is announced to have `announced` in the end. What
/// is announced is never exceeded, unless more elements than that come; and the memory is at most
/// [`AHEAD`] times what the elements that came take.
pub(crate) fn make_room<T>(list: &mut Vec<T>, more: usize, announced: u64) {
    let needed = list.len().saturating_add(more);
    if needed <= list.capacity() {
        return;
    }
    // More than fits into memory is never reached.
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    let room = match needed.saturating_mul(AHEAD) {
        ahead if ahead >= announced => announced.max(needed),
        // Half as far, so that what is moved at last is less than half of the list.
        ahead => ahead / 2,
    };
    list.reserve_exact(room - list.len());
}

#[cfg(test)]
mod tests;
