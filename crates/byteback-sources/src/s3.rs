//! The additional checksums that S3 and compatible servers keep of objects: one of the whole, and
//! for objects sent in parts one of each part (SkySync, Table 1: object storage, by the system's
//! interface).
//!
//! ## When a checksum counts
//!
//! An object is never changed, only replaced. The answers to several requests are about one object
//! if its headers (ETag, version, time, length and checksum) are the same before and after. Bytes
//! are read with `If-Match`, so that the server itself refuses those of another object, and have to
//! come with the same ETag, because some servers ignore that header. The list of parts is trusted
//! if it has the object's length and number of parts, and if the object's own checksum follows from
//! those of the parts: for a list that was cut short, or is of another upload, it does not. (A SHA
//! over the whole bytes does not follow from those of parts. S3 has none for objects in parts;
//! where a server has one, the parts are ignored.)
//! ## Which blocks
//!
//! Parts of one length (the last one may be shorter) are blocks. An object of uneven parts has no
//! blocks; one that was sent at once is one block. So comparing pays for objects that were sent in
//! parts, and the more, the smaller the parts are; S3's smallest is 5 MiB. Of several functions the
//! best is taken: SHA-256, which proves equality, before CRC-64, CRC-32C and CRC-32, and SHA-1
//! last, which is broken.
//!
//! ## What it does not do
//!
//! The ETag of an object that is not encrypted is mostly its MD5, which no server guarantees and
//! which is broken: it distinguishes objects, and is not used as a checksum here. Objects encrypted
//! by a client have checksums of the encrypted bytes.

pub(crate) mod answers;
mod sign;

use std::io;

use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use parking_lot::Mutex;

use self::answers::{Fitting, Head, Malformed, PARTS_MAX, Parts, Unfit, Whole, error_code, fit, in_their_order};
pub(crate) use self::sign::escaped;
use self::sign::{Unsigned, query_text, sign};
use crate::http::{Answer, Http, Method, Request};
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Layout, Result, Run, Source, SourceError, Stamp, Tail,
};

/// The description of the S3 source.
pub const DESCRIPTION: Description = Description {
    name: "s3",
    coverage: "each part of an object that was sent in parts of equal length, or the whole object; none of objects \
               that were stored without an additional checksum",
    cost: "two requests for headers, and one for each 1000 parts",
    permissions: "s3:GetObject and s3:GetObjectAttributes, by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
};

/// Limit of an answer that is read as a whole, in bytes: 1000 parts take some 300 KB.
const ANSWER_LEN_MAX: u64 = 4 << 20;

/// Limit of a server's error message, which may be longer than the requested bytes.
const ERROR_LEN_MAX: u64 = 64 << 10;

/// Parts requested at once, S3's maximum.
const PARTS_PER_PAGE: u64 = 1000;

/// The number of attempts for an object that is replaced meanwhile.
const ATTEMPTS: u32 = 3;

/// The identity that signs requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The public part of the key.
    pub access_key: String,
    /// The secret part.
    pub secret_key: String,
    /// The token that belongs to temporary keys.
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key", &self.access_key)
            .finish_non_exhaustive()
    }
}

/// The address of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The server: `http://HOST:PORT` or `https://HOST`, without a slash at the end. Buckets are
    /// the first part of the path there.
    pub endpoint: String,
    /// Its region; most servers other than Amazon's take `us-east-1`.
    pub region: String,
    /// The bucket.
    pub bucket: String,
    /// The object's name.
    pub key: String,
}

impl Place {
    /// Parses `s3://BUCKET/KEY`. Without an endpoint, the address is Amazon's of the region.
    ///
    /// # Errors
    /// The defect of the address, in words.
    pub fn new(url: &str, endpoint: Option<&str>, region: &str) -> std::result::Result<Self, &'static str> {
        let path = url
            .strip_prefix("s3://")
            .ok_or("an object's address begins with s3://")?;
        let (bucket, key) = path.split_once('/').ok_or("an object's address is s3://BUCKET/KEY")?;
        if bucket.is_empty() || key.is_empty() {
            return Err("an object's address is s3://BUCKET/KEY");
        }
        if bucket.contains(|c: char| !(c.is_ascii_alphanumeric() || ".-_".contains(c))) {
            return Err("a bucket's name has letters, digits, dots and hyphens only");
        }
        // A server would normalize such a path to another one.
        if key.split('/').any(|part| part == "." || part == "..") {
            return Err("a key must not have '.' or '..' between slashes");
        }
        let endpoint = match endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{region}.amazonaws.com"),
        };
        let host = endpoint
            .strip_prefix("http://")
            .or_else(|| endpoint.strip_prefix("https://"));
        match host {
            Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@']) => Ok(Self {
                endpoint,
                region: region.to_owned(),
                bucket: bucket.to_owned(),
                key: key.to_owned(),
            }),
            _ => Err("the endpoint is http://HOST:PORT or https://HOST"),
        }
    }

    fn host(&self) -> &str {
        self.endpoint.split_once("://").map_or("", |(_, host)| host)
    }

    fn path(&self) -> String {
        format!("/{}/{}", self.bucket, escaped(&self.key, true))
    }
}

/// An object, as a source.
pub struct S3Source<'a> {
    http: &'a dyn Http,
    clock: &'a dyn Clock,
    place: Place,
    credentials: Option<Credentials>,
    /// The object described last; only its bytes are read.
    described: Mutex<Option<Head>>,
}

impl<'a> S3Source<'a> {
    /// The source for the object at `place`. Without credentials, requests are not signed, which is
    /// enough for public objects. No request is sent yet.
    #[must_use]
    pub fn new(http: &'a dyn Http, clock: &'a dyn Clock, place: Place, credentials: Option<Credentials>) -> Self {
        Self {
            http,
            clock,
            place,
            credentials,
            described: Mutex::new(None),
        }
    }

    fn ask(
        &self,
        method: Method,
        query: &[(&str, String)],
        mut headers: Vec<(&'static str, String)>,
        body_len_max: u64,
    ) -> Result<Answer> {
        let path = self.place.path();
        if let Some(credentials) = &self.credentials {
            let unsigned = Unsigned {
                method: method.name(),
                host: self.place.host(),
                path: &path,
                query,
                headers: &headers,
            };
            let unix_s = self.clock.now_ns().div_euclid(1_000_000_000);
            headers.extend(sign(&unsigned, credentials, &self.place.region, unix_s));
        }
        let mut url = format!("{}{path}", self.place.endpoint);
        if !query.is_empty() {
            url.push('?');
            url.push_str(&query_text(query));
        }
        let request = Request {
            method,
            url,
            headers,
            body_len_max,
        };
        self.http
            .ask(&request)
            .map_err(SourceError::io("reach the server of the object"))
    }

    fn refusal(&self, what: &'static str, answer: &Answer) -> SourceError {
        match answer.status {
            401 | 403 if self.credentials.is_none() => {
                SourceError::Denied("the server requires credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            }
            401 | 403 => SourceError::Denied(
                "the server denied access: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and that the \
                 key may read the object",
            ),
            404 => SourceError::Missing("no such object, or no such bucket"),
            412 => SourceError::ChangedMeanwhile,
            status => SourceError::Server {
                what,
                status,
                code: error_code(&answer.body),
            },
        }
    }

    fn head(&self) -> Result<Head> {
        let headers = vec![("x-amz-checksum-mode", "ENABLED".to_owned())];
        let answer = self.ask(Method::Head, &[], headers, 0)?;
        match answer.status {
            200 => Head::parse(&answer).map_err(malformed),
            _ => Err(self.refusal("send the object's headers", &answer)),
        }
    }

    /// The announced number of parts, and the parts; `None` if the server does not list parts.
    fn parts(&self, head: &Head) -> Result<Option<(Option<u64>, Vec<answers::Part>)>> {
        let kind = match &head.sum {
            Some((kind, _)) => *kind,
            None => return Ok(None),
        };
        let (mut parts, mut count, mut after) = (Vec::new(), None, 0);
        loop {
            let mut query = vec![("attributes", String::new())];
            if let Some(version) = &head.version {
                query.push(("versionId", version.clone()));
            }
            let mut headers = vec![
                ("x-amz-max-parts", PARTS_PER_PAGE.to_string()),
                (
                    "x-amz-object-attributes",
                    "ETag,Checksum,ObjectParts,ObjectSize".to_owned(),
                ),
            ];
            if after > 0 {
                headers.push(("x-amz-part-number-marker", after.to_string()));
            }
            let answer = self.ask(Method::Get, &query, headers, ANSWER_LEN_MAX)?;
            match answer.status {
                200 => {}
                // Without permission to list parts, the object is treated as on a server that
                // cannot list them.
                400 | 403 | 405 | 501 => return Ok(None),
                _ => return Err(self.refusal("list the object's parts", &answer)),
            }
            let page = Parts::parse(&answer.body, kind).map_err(malformed)?;
            let is_another = |reported: &Option<String>| {
                reported
                    .as_deref()
                    .is_some_and(|etag| etag != head.etag.trim_matches('"'))
            };
            if is_another(&page.etag) || page.object_len_bytes.is_some_and(|len| len != head.len_bytes) {
                return Err(SourceError::ChangedMeanwhile);
            }
            count = page.count.or(count);
            let has_parts = !page.parts.is_empty();
            parts.extend(page.parts);
            match page.next {
                // These conditions make the loop end.
                Some(next) if has_parts && next > after && parts.len() as u64 <= PARTS_MAX => after = next,
                Some(_) => return Err(SourceError::Malformed("pages of parts without an end")),
                None => return Ok((!parts.is_empty()).then_some((count, parts))),
            }
        }
    }

    fn begin(&self) -> Result<S3Extraction<'_, 'a>> {
        let head = self.head()?;
        let Some((kind, whole)) = head.sum.clone() else {
            return Err(SourceError::NotHere(
                "the object was stored without an additional checksum; upload it with one (--checksum-algorithm SHA256)",
            ));
        };
        let is_in_parts = matches!(whole, Whole::Parts(_)) || head.parts().is_some();
        let of_parts = match is_in_parts {
            true => self.parts(&head)?.map(|(count, parts)| fit(&head, count, &parts)),
            false => None,
        };
        let fitting = match (of_parts, whole) {
            (Some(Ok(fitting)), _) => fitting,
            (Some(Err(Unfit::Malformed(what))), _) => return Err(SourceError::Malformed(what)),
            (_, Whole::Bytes(sum)) => Fitting {
                part_len_bytes: head.len_bytes,
                sums: vec![sum],
            },
            (Some(Err(Unfit::Uneven)), Whole::Parts(_)) => {
                return Err(SourceError::NotHere("the object's parts are of different lengths"));
            }
            (None | Some(Err(Unfit::NotReported)), Whole::Parts(_)) => {
                return Err(SourceError::NotHere(
                    "the server does not report the checksums of the object's parts",
                ));
            }
        };
        let block_len = u32::try_from(fitting.part_len_bytes.max(1));
        let layout = Layout {
            kind,
            salt: Vec::new(),
            block_len: block_len.map_err(|_| SourceError::NotHere("the object's parts are longer than 4 GiB"))?,
            tail: Tail::AsIs,
        };
        let sums: Vec<u8> = fitting.sums.iter().flat_map(|sum| in_their_order(kind, sum)).collect();
        Ok(S3Extraction {
            source: self,
            layout,
            run: ByteRange::new(0, head.len_bytes),
            sums,
            head,
        })
    }

    fn stamp(&self, head: &Head) -> Stamp {
        let mut witness = blake3::Hasher::new();
        let len = head.len_bytes.to_le_bytes();
        let sum = match &head.sum {
            Some((kind, Whole::Bytes(sum) | Whole::Parts(sum))) => [kind.name().as_bytes(), sum].concat(),
            None => Vec::new(),
        };
        let version = head.version.as_deref().unwrap_or_default();
        let place = [
            &self.place.endpoint,
            &self.place.bucket,
            &self.place.key,
            &head.etag,
            version,
            &head.last_modified,
        ];
        for text in place.iter().map(|text| text.as_bytes()).chain([&len[..], &sum]) {
            witness.update(&(text.len() as u64).to_le_bytes()).update(text);
        }
        Stamp::elsewhere(head.len_bytes, *witness.finalize().as_bytes())
    }
}

fn malformed(Malformed(what): Malformed) -> SourceError {
    SourceError::Malformed(what)
}

/// A single pass over an object's checksums.
struct S3Extraction<'s, 'a> {
    source: &'s S3Source<'a>,
    layout: Layout,
    /// The run that is still to be returned.
    run: Option<ByteRange>,
    sums: Vec<u8>,
    head: Head,
}

impl Extraction for S3Extraction<'_, '_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.head.len_bytes
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        Ok(self.run.take().map(|range| Run::Sums {
            range,
            sums: &self.sums,
        }))
    }

    fn finish(self) -> Result<Stamp> {
        if self.source.head()? != self.head {
            return Err(SourceError::ChangedMeanwhile);
        }
        let stamp = self.source.stamp(&self.head);
        *self.source.described.lock() = Some(self.head);
        Ok(stamp)
    }
}

impl Source for S3Source<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(ATTEMPTS, || self.begin())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let described = self.described.lock().clone();
        let head = match described {
            Some(head) => head,
            None => self.described.lock().insert(self.head()?).clone(),
        };
        let Some(range) = ByteRange::new(offset, head.len_bytes.min(offset.saturating_add(buffer.len() as u64))) else {
            return Ok(0);
        };
        let query: Vec<_> = head
            .version
            .iter()
            .map(|version| ("versionId", version.clone()))
            .collect();
        let last = range.end() - 1;
        let headers = vec![
            ("if-match", head.etag.clone()),
            ("range", format!("bytes={offset}-{last}")),
        ];
        let body_len_max = range.len_bytes().max(ERROR_LEN_MAX);
        let answer = self.ask(Method::Get, &query, headers, body_len_max)?;
        // Some servers ignore `If-Match`.
        if matches!(answer.status, 200 | 206) {
            match answer.header("etag") {
                Some(etag) if etag == head.etag => {}
                Some(_) => return Err(SourceError::ChangedMeanwhile),
                None => return Err(SourceError::Malformed("bytes of an object without an ETag")),
            }
        }
        let expected = format!("bytes {offset}-{last}/{}", head.len_bytes);
        match answer.status {
            206 if answer.header("content-range") == Some(&expected) => {}
            // The whole object was requested.
            200 if range.len_bytes() == head.len_bytes => {}
            200 | 206 => return Err(SourceError::Malformed("other bytes of the object than requested")),
            416 => return Err(SourceError::ChangedMeanwhile),
            _ => return Err(self.refusal("send the object's bytes", &answer)),
        }
        match buffer.get_mut(..answer.body.len()) {
            Some(taken) if answer.body.len() as u64 == range.len_bytes() => {
                taken.copy_from_slice(&answer.body);
                Ok(taken.len())
            }
            _ => Err(SourceError::io("read the object")(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        match self.head() {
            Ok(head) => Ok(self.stamp(&head) == *stamp),
            Err(SourceError::Missing(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
