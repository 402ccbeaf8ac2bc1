//! The one table of the server's calls.
//!
//! The router is built from it and the OpenAPI document is compared with it, so that neither can
//! have a call that the other lacks.

/// An HTTP method that the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// GET
    Get,
    /// PUT
    Put,
    /// POST
    Post,
    /// DELETE
    Delete,
}

impl Method {
    /// The method in upper case, as on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Put => "PUT",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        }
    }
}

/// The access level that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone who reaches the server.
    Open,
    /// Any joined device.
    Member,
    /// A device with a grant for the folder in the path.
    Reads,
    /// A device with a grant to change the folder in the path.
    Writes,
    /// A device that may manage other devices.
    Manages,
}

macro_rules! routes {
    ($( $(#[$doc:meta])* $name:ident = $method:ident $path:literal $access:ident; )*) => {
        /// A call of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Route {
            $( $(#[$doc])* $name, )*
        }

        impl Route {
            /// Every call.
            pub const ALL: &'static [Route] = &[ $( Route::$name, )* ];

            /// The method.
            #[must_use]
            pub fn method(self) -> Method {
                match self { $( Route::$name => Method::$method, )* }
            }

            /// The path template, with parameters in braces.
            #[must_use]
            pub fn path(self) -> &'static str {
                match self { $( Route::$name => $path, )* }
            }

            /// The access level that the call needs.
            #[must_use]
            pub fn access(self) -> Access {
                match self { $( Route::$name => Access::$access, )* }
            }
        }
    };
}

routes! {
    /// Is the server alive?
    Health = Get "/healthz" Open;
    /// Prometheus metrics.
    Metrics = Get "/metrics" Member;
    /// The OpenAPI document.
    OpenApi = Get "/openapi.json" Open;
    /// Open a line: a connection that stands and carries calls.
    Line = Get "/v1/line" Member;
    /// Exchange a join token for a device token.
    Join = Post "/v1/devices" Open;
    /// List devices, and invitations that wait to be used.
    Devices = Get "/v1/devices" Manages;
    /// Rename a device.
    DeviceRename = Put "/v1/devices/{device}" Manages;
    /// Revoke a device's token.
    DeviceRevoke = Delete "/v1/devices/{device}" Manages;
    /// Make a join token.
    Invite = Post "/v1/invitations" Manages;
    /// Withdraw an unused invitation.
    InvitationWithdraw = Delete "/v1/invitations/{invitation}" Manages;
    /// List folders.
    Folders = Get "/v1/folders" Member;
    /// Create a folder (idempotent).
    FolderCreate = Put "/v1/folders/{folder}" Writes;
    /// Describe a folder.
    Folder = Get "/v1/folders/{folder}" Reads;
    /// Stage a part of a batch.
    PartPut = Put "/v1/folders/{folder}/batches/{counter}/parts/{part}" Writes;
    /// Commit a batch; the body is its last piece.
    BatchCommit = Post "/v1/folders/{folder}/batches/{counter}" Writes;
    /// Describe the state of one of the device's own batches.
    BatchStatus = Get "/v1/folders/{folder}/batches/{counter}" Reads;
    /// Abandon one of the device's own batches that is not applied, with its staged parts.
    BatchAbandon = Delete "/v1/folders/{folder}/batches/{counter}" Writes;
    /// List snapshots.
    Snapshots = Get "/v1/folders/{folder}/snapshots" Reads;
    /// Name a sequence number.
    SnapshotCreate = Post "/v1/folders/{folder}/snapshots" Writes;
    /// Delete a snapshot.
    SnapshotDelete = Delete "/v1/folders/{folder}/snapshots/{snapshot}" Writes;
    /// Read a directory at a moment.
    Tree = Get "/v1/folders/{folder}/tree" Reads;
    /// Describe a node at a moment.
    Node = Get "/v1/folders/{folder}/nodes/{node}" Reads;
    /// Read contents, or a delta over nothing.
    Content = Get "/v1/folders/{folder}/nodes/{node}/content" Reads;
    /// Weak and strong checksums of a content's blocks.
    Signature = Get "/v1/folders/{folder}/nodes/{node}/signature" Reads;
    /// Weak and strong checksums of short blocks of some ranges of a content.
    Excerpt = Post "/v1/folders/{folder}/nodes/{node}/excerpt" Reads;
    /// Some ranges of a content, as a delta over nothing.
    ExcerptBytes = Post "/v1/folders/{folder}/nodes/{node}/excerpt/bytes" Reads;
    /// Compare sums of groups of leaves, and get a signature of those that differ.
    Groups = Post "/v1/folders/{folder}/nodes/{node}/groups" Reads;
    /// Look for the blocks of a new content.
    Matches = Post "/v1/folders/{folder}/nodes/{node}/matches" Reads;
    /// Look for the chunks of a new content.
    Chunks = Post "/v1/folders/{folder}/nodes/{node}/chunks" Reads;
    /// List data and holes.
    Extents = Get "/v1/folders/{folder}/nodes/{node}/extents" Reads;
    /// List ranges written between two moments.
    Changes = Get "/v1/folders/{folder}/nodes/{node}/changes" Reads;
    /// List differences of the tree between two moments.
    Diff = Get "/v1/folders/{folder}/diff" Reads;
    /// List the nodes that a path has named, newest first.
    Versions = Get "/v1/folders/{folder}/versions" Reads;
    /// Find the newest batch that was made at a time or earlier.
    Moment = Get "/v1/folders/{folder}/moment" Reads;
    /// Receive batches as events when they are applied.
    Events = Get "/v1/folders/{folder}/events" Reads;
    /// List ranges of a file that cannot be read at a moment.
    Damage = Get "/v1/folders/{folder}/nodes/{node}/damage" Reads;
    /// Offer the bytes of a damaged frame.
    Heal = Post "/v1/folders/{folder}/nodes/{node}/heal" Writes;
    /// Files that begin like new ones and have their lengths, for many at once.
    Alike = Post "/v1/folders/{folder}/alike" Reads;
    /// Digests of short contents, many at once.
    Digests = Post "/v1/folders/{folder}/digests" Reads;
    /// Read short contents, many at once.
    Bundle = Post "/v1/folders/{folder}/bundle" Reads;
    /// Read the contents of many small files as a stream.
    Contents = Post "/v1/folders/{folder}/contents" Reads;
    /// List known damaged frames, as the files show them now.
    KnownDamage = Get "/v1/folders/{folder}/damage" Reads;
    /// Digests of the directories below a node at a moment.
    DirectoryDigests = Get "/v1/folders/{folder}/nodes/{node}/directory-digests" Reads;
    /// Count the nodes below a node at a moment.
    Totals = Get "/v1/folders/{folder}/nodes/{node}/totals" Reads;
    /// Re-read and check everything that a moment needs.
    Verify = Post "/v1/folders/{folder}/verify" Reads;
}
