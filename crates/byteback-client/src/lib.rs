//! A server as the programs of a client see it: one method per call of the HTTP API, typed errors,
//! retries, and limits of the wire.
//!
//! | to do | call |
//! |---|---|
//! | become a device of a server | [`join`] |
//! | reach a server | [`ServerClient::new`], with [`ClientOptions`] |
//! | hear of batches as they are applied | [`ServerClient::listen`] |
//! | lend a connection to other processes | [`LineRelay`], with [`ClientOptions::relay`] |
//! | limit or pause what is sent | [`throttle`] |
//!
//! It never prints and reads no environment. Out of scope: what is sent and why, which the crates
//! above decide; how folders are read or mounted; how the server stores.

mod error;
mod server_client;
pub mod throttle;

pub use error::{CertificateChanged, ServerError, ServerErrorKind};
pub use server_client::{
    ClientOptions, Connection, ContentReader, ContentsStream, GoOn, LineRelay, Listening, Network, Pauses,
    ServerClient, ServerNews, TreePlace, UnixConnection, VerifyStream, WireBytes, join, of_hex,
};

/// The result of a call of a server.
pub type Result<T, E = ServerError> = std::result::Result<T, E>;
