//! The ioctls of `byteback-ioctl`, translated.

use std::io;
use std::sync::Arc;

use byteback_ioctl::abi::{DELTA_CLOSE, DELTA_GETDIFF, DELTA_OPEN, DELTA_READ, DeltaOpen, Layout};
use fuser::{Errno, ReplyIoctl};

use super::answer::{Owed, Refusal};
use super::target::Control;
use crate::hidden::Hidden;

/// Whether a call is one of these.
pub(super) fn is_ours(number: u32) -> bool {
    matches!(number, DELTA_OPEN | DELTA_GETDIFF | DELTA_READ | DELTA_CLOSE)
}

fn decoded<T: Layout>(bytes: &[u8]) -> io::Result<T> {
    T::decode(bytes).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Answers a `byteback-ioctl` call on an open file of the tree.
pub(super) fn ioctl(hidden: &Arc<Hidden>, handle: u64, control: &Control<'_>, owed: Owed<'_, ReplyIoctl>) {
    let (deltas, uid, bytes) = (hidden.deltas(), control.uid, control.bytes);
    let answer = |owed: Owed<'_, ReplyIoctl>, done: io::Result<Vec<u8>>| owed.bytes(done.map_err(Refusal::from));
    match control.number {
        DELTA_OPEN => {
            let checked = decoded::<DeltaOpen>(bytes)
                .and_then(|request| Ok((deltas.check_open(handle, uid, &request)?, request)));
            match checked {
                Err(error) => answer(owed, Err(error)),
                Ok((file, request)) => {
                    let (deltas, owed) = (Arc::clone(deltas), owed.late());
                    hidden.later(Box::new(move || {
                        let opened = deltas.open(handle, uid, &file, &request);
                        // Before the program can go on: whoever closes then is the last.
                        drop(file);
                        answer(owed, opened.map(|opened| opened.encode()));
                    }));
                }
            }
        }
        DELTA_GETDIFF => {
            let done = decoded(bytes).and_then(|request| deltas.getdiff(handle, &request));
            answer(owed, done.map(|done| done.encode()));
        }
        DELTA_READ => {
            let done = decoded(bytes).and_then(|request| deltas.read(handle, &request));
            answer(owed, done.map(|done| done.encode()));
        }
        DELTA_CLOSE => match decoded(bytes) {
            Err(error) => answer(owed, Err(error)),
            Ok(request) => {
                let (deltas, owed) = (Arc::clone(deltas), owed.late());
                hidden.later(Box::new(move || {
                    answer(owed, deltas.close(handle, &request).map(|()| Vec::new()));
                }));
            }
        },
        _ => owed.refuse(&Errno::ENOTTY.into()),
    }
}
