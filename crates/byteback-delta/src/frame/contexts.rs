//! zstd's contexts, which are used again.
//!
//! Making one takes longer than compressing a small frame: it asks the processor for its abilities,
//! which a virtual machine has to answer in software. Encoders and decoders of small files come and
//! go by the thousand, so each thread keeps a few contexts of those that ended there.
//!
//! Memory: [`IDLE_MAX`] contexts of each kind for a thread that ever had as many at a time; one
//! that has compressed a whole frame takes about a MiB.

use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

/// Idle contexts of a kind that a thread keeps.
const IDLE_MAX: usize = 2;

thread_local! {
    static IDLE: RefCell<Idle> = const {
        RefCell::new(Idle {
            compressors: Vec::new(),
            decompressors: Vec::new(),
        })
    };
}

pub(super) struct Idle {
    /// Each with its level.
    compressors: Vec<(i32, Compressor<'static>)>,
    decompressors: Vec<Decompressor<'static>>,
}

/// A context that its thread keeps when it is dropped.
pub(super) struct Kept<C: Keep> {
    /// `None` only while it is dropped.
    context: Option<C>,
    level: i32,
}

/// A kind of context.
pub(super) trait Keep: Sized {
    /// Takes an idle one.
    fn take(idle: &mut Idle, level: i32) -> Option<Self>;

    /// Makes one.
    fn make(level: i32) -> io::Result<Self>;

    /// Keeps it, if there is room.
    fn keep(self, idle: &mut Idle, level: i32);
}

impl Keep for Compressor<'static> {
    fn take(idle: &mut Idle, level: i32) -> Option<Self> {
        let index = idle.compressors.iter().position(|(of, _)| *of == level)?;
        Some(idle.compressors.swap_remove(index).1)
    }

    fn make(level: i32) -> io::Result<Self> {
        Self::new(level)
    }

    fn keep(self, idle: &mut Idle, level: i32) {
        if idle.compressors.iter().filter(|(of, _)| *of == level).count() < IDLE_MAX {
            idle.compressors.push((level, self));
        }
    }
}

impl Keep for Decompressor<'static> {
    fn take(idle: &mut Idle, _: i32) -> Option<Self> {
        idle.decompressors.pop()
    }

    fn make(_: i32) -> io::Result<Self> {
        Self::new()
    }

    fn keep(self, idle: &mut Idle, _: i32) {
        if idle.decompressors.len() < IDLE_MAX {
            idle.decompressors.push(self);
        }
    }
}

impl<C: Keep> Kept<C> {
    /// A context of this level, if it has levels.
    pub(super) fn of_level(level: i32) -> io::Result<Self> {
        // A thread that ends has no idle ones any more.
        let idle = IDLE.try_with(|idle| C::take(&mut idle.borrow_mut(), level));
        let context = match idle.ok().flatten() {
            Some(context) => context,
            None => C::make(level)?,
        };
        Ok(Self {
            context: Some(context),
            level,
        })
    }

    /// Acts with the context.
    pub(super) fn with<T>(&mut self, act: impl FnOnce(&mut C) -> io::Result<T>) -> io::Result<T> {
        match &mut self.context {
            Some(context) => act(context),
            None => Err(io::Error::other("the context is gone")),
        }
    }
}

impl<C: Keep> Drop for Kept<C> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            let _ = IDLE.try_with(|idle| context.keep(&mut idle.borrow_mut(), self.level));
        }
    }
}
