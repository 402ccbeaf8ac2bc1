//! The HTTP server over a store.
//!
//! [`Server::start`] binds an address, serves on threads of its own and returns a [`ServerHandle`].
//! Every request passes one gate, `dispatch`: it takes the route from the one table in
//! `byteback-api`, checks the token and the device's access, counts, runs the call and turns any
//! failure into `application/problem+json`. Calls of the store block and run on blocking threads;
//! bodies in both directions stream through short channels, so that memory does not grow with them.
//!
//! Shutdown: no new connections are accepted, requests at work finish (up to a limit), then the
//! threads end. A killed server loses nothing that it acknowledged, because it acknowledges after
//! the store's commit.
//!
//! [`InProcess`] is the same server without sockets and threads of its own.
//!
//! The one thing beside the API is the guide: public pages below [`GUIDE_PATH`], if the
//! configuration names a folder of them.
//!
//! This crate knows no FUSE and no client state, and decides nothing about versions.

mod admission;
mod body;
mod call;
mod config;
mod connection;
mod convert;
mod damage;
mod devices;
mod directories;
mod dispatch;
mod door;
mod events;
mod guide;
mod headers;
mod in_process;
mod line;
mod listener;
mod listing;
mod metrics;
mod presence;
mod problem;
mod reading;
mod search;
mod server;
mod signature;
mod subscriptions;
mod tls;
mod upkeep;
mod upload;

pub use config::ServerConfig;
pub use devices::{device_info, invitation_info};
pub use guide::{GUIDE_PATH, Guide, GuideError};
pub use in_process::InProcess;
pub use server::{Server, ServerError, ServerHandle};
pub use tls::{Identity, IdentityError};
