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

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone who reaches the server.
    Open,
    /// Whoever holds a device token.
    Device,
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

            /// Who may make the call.
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
    Metrics = Get "/metrics" Device;
    /// The OpenAPI document.
    OpenApi = Get "/openapi.json" Open;
    /// Exchange a join token for a device token.
    Join = Post "/v1/devices" Open;
    /// List folders.
    Folders = Get "/v1/folders" Device;
    /// Create a folder (idempotent).
    FolderCreate = Put "/v1/folders/{folder}" Device;
    /// Describe a folder.
    Folder = Get "/v1/folders/{folder}" Device;
    /// Stage a part of a batch.
    PartPut = Put "/v1/folders/{folder}/batches/{counter}/parts/{part}" Device;
    /// Commit a batch; the body is its last piece.
    BatchCommit = Post "/v1/folders/{folder}/batches/{counter}" Device;
    /// Ask what became of one's batch.
    BatchStatus = Get "/v1/folders/{folder}/batches/{counter}" Device;
    /// List snapshots.
    Snapshots = Get "/v1/folders/{folder}/snapshots" Device;
    /// Name a sequence number.
    SnapshotCreate = Post "/v1/folders/{folder}/snapshots" Device;
    /// Forget a name.
    SnapshotDelete = Delete "/v1/folders/{folder}/snapshots/{snapshot}" Device;
    /// Read a directory at a moment.
    Tree = Get "/v1/folders/{folder}/tree" Device;
    /// Describe a node at a moment.
    Node = Get "/v1/folders/{folder}/nodes/{node}" Device;
    /// Read contents, or a delta over nothing.
    Content = Get "/v1/folders/{folder}/nodes/{node}/content" Device;
    /// Weak and strong checksums of a content's blocks.
    Signature = Get "/v1/folders/{folder}/nodes/{node}/signature" Device;
    /// Look for the blocks of a new content.
    Matches = Post "/v1/folders/{folder}/nodes/{node}/matches" Device;
    /// Look for the chunks of a new content.
    Chunks = Post "/v1/folders/{folder}/nodes/{node}/chunks" Device;
    /// List data and holes.
    Extents = Get "/v1/folders/{folder}/nodes/{node}/extents" Device;
    /// List ranges written between two moments.
    Changes = Get "/v1/folders/{folder}/nodes/{node}/changes" Device;
    /// List differences of the tree between two moments.
    Diff = Get "/v1/folders/{folder}/diff" Device;
    /// Re-read and check everything a moment needs.
    Verify = Post "/v1/folders/{folder}/verify" Device;
}
