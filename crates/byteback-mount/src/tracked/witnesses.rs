//! One file for each witness of the gate; [`super::witness`] states their order.

mod before_images;
mod integrity;
mod log;
mod observer;
mod pictures;
mod undo;

pub(super) use observer::Watcher;
