//! Digests of directories: a client that has a tree of its own learns where the two differ, without
//! a listing of either.
//!
//! The tree is walked in the catalog, as long as the client waits. A tree of more directories than
//! a list can have gets an empty one.

use crate::call::{Call, stream_permit};
use crate::problem::Answer;
use crate::search::while_waited_for;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use byteback_api::MEDIA_DIRECTORY_DIGESTS;
use byteback_api::directory_digests::{
    DIRECTORIES_MAX, DigestedDirectory, DirectoryDigests, DirectoryEntries, PathKey, combine,
};
use byteback_model::{Attributes, Seq};
use byteback_store::directories::TakesDirectories;

pub(crate) async fn directory_digests(mut call: Call) -> Answer {
    let (folder, node) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let permit = stream_permit(&call.shared).await?;
    let digests = while_waited_for(&call.shared, move |store, is_wanted| {
        let mut digesting = Digesting {
            is_wanted,
            is_whole: true,
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
    is_whole: bool,
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
        self.is_whole = self.directories.len() < DIRECTORIES_MAX as usize;
        self.paths.push(PathKey::of(path));
        self.directories.push(DigestedDirectory { above, entries: None });
        self.is_whole && (self.is_wanted)()
    }

    fn entry(&mut self, name: &[u8], attributes: &Attributes, has_several_names: bool) {
        self.entries.push(name, attributes);
        // Which names belong to one file is in no digest.
        if has_several_names {
            self.entries.give_up();
        }
    }
}
