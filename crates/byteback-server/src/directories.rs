//! Digests of directories: a client that has a tree of its own learns where the two differ, without
//! a listing of either.
//!
//! The tree is walked in the catalog, as long as the client waits, and for at most as many names as
//! it says, as it compares them with its own: of a tree of more names, of more directories than a
//! list can have, or of longer paths it gets an empty list. A few such walks are made at a time.

use crate::call::{Call, signature_permit};
use crate::problem::Answer;
use crate::search::while_waited_for;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use byteback_api::MEDIA_DIRECTORY_DIGESTS;
use byteback_api::directory_digests::{
    DIRECTORIES_MAX, DigestedDirectory, DirectoryDigests, DirectoryEntries, PathKey, combine,
};
use byteback_model::{Attributes, NodeKind, Seq};
use byteback_store::directories::TakesDirectories;

/// Longest path of a directory that has a digest, in bytes: each is hashed as a whole.
const PATH_LEN_MAX: usize = 16 * 1024;

pub(crate) async fn directory_digests(mut call: Call) -> Answer {
    let (folder, node) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    let names_max = call.query::<u64>("names_max")?.unwrap_or(u64::MAX);
    call.finish_query()?;
    let permit = signature_permit(&call.shared).await?;
    let digests = while_waited_for(&call.shared, move |store, is_wanted| {
        let mut digesting = Digesting {
            is_wanted,
            names_left: names_max,
            is_whole: true,
            met: 1,
            paths: Vec::new(),
            directories: Vec::new(),
            entries: DirectoryEntries::default(),
        };
        store.walk_directories(&folder, node, at, &mut digesting)?;
        Ok(is_wanted().then(|| digesting.finish()))
    })
    .await?;
    drop(permit);
    let mut response = Response::new(Body::from(digests.encode()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_DIRECTORY_DIGESTS));
    Ok(response)
}

/// The digests as they are made; `entries` are those of the last directory.
struct Digesting<'a> {
    is_wanted: &'a dyn Fn() -> bool,
    names_left: u64,
    /// Whether all of it was walked.
    is_whole: bool,
    /// Directories met so far, those that come next among them.
    met: u32,
    paths: Vec<PathKey>,
    directories: Vec<DigestedDirectory>,
    entries: DirectoryEntries,
}

impl Digesting<'_> {
    fn end_of_directory(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        if let Some(last) = self.directories.last_mut() {
            last.entries = entries.finish();
        }
    }

    fn finish(mut self) -> DirectoryDigests {
        self.end_of_directory();
        let mut digests = DirectoryDigests::default();
        if self.is_whole {
            let combined = combine(&self.directories);
            for (path, digest) in self.paths.iter().zip(combined) {
                if let Some(digest) = digest {
                    digests.insert(*path, &digest);
                }
            }
        }
        digests
    }
}

impl TakesDirectories for Digesting<'_> {
    fn directory(&mut self, path: &[u8], above: Option<usize>) -> bool {
        self.end_of_directory();
        self.is_whole = path.len() <= PATH_LEN_MAX && (self.is_wanted)();
        self.paths.push(PathKey::of(path));
        self.directories.push(DigestedDirectory { above, entries: None });
        self.is_whole
    }

    fn entry(&mut self, name: &[u8], attributes: &Attributes, has_several_names: bool) -> bool {
        self.entries.push(name, attributes);
        // Which names belong to one node is in no digest.
        if has_several_names {
            self.entries.give_up();
        }
        self.met += u32::from(attributes.kind == NodeKind::Directory);
        self.is_whole = self.names_left > 0 && self.met <= DIRECTORIES_MAX && (self.is_wanted)();
        self.names_left = self.names_left.saturating_sub(1);
        self.is_whole
    }
}
