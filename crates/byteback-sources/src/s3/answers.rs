//! Parsers for S3's answers: headers and XML in, values out. Nothing is trusted: every number is
//! checked, and an impossible one is [`Malformed`].

use base64::Engine;

use crate::http::Answer;
use byteback_checksums::source::Kind;

/// An impossible answer; the text names the defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

type Result<T> = std::result::Result<T, Malformed>;

/// The kinds of additional checksums, best first.
const KINDS: [(Kind, &str, &str); 5] = [
    (Kind::Sha256, "x-amz-checksum-sha256", "ChecksumSHA256"),
    (Kind::Crc64Nvme, "x-amz-checksum-crc64nvme", "ChecksumCRC64NVME"),
    (Kind::Crc32c, "x-amz-checksum-crc32c", "ChecksumCRC32C"),
    (Kind::Crc32, "x-amz-checksum-crc32", "ChecksumCRC32"),
    (Kind::Sha1, "x-amz-checksum-sha1", "ChecksumSHA1"),
];

/// S3's limit of parts in one object.
pub(crate) const PARTS_MAX: u64 = 10_000;

/// The checksum of the whole object, and the data that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    /// The object's bytes.
    Bytes(Vec<u8>),
    /// The concatenated checksums of its parts.
    Parts(Vec<u8>),
}

/// The headers of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) len_bytes: u64,
    /// The ETag with its quotation marks.
    pub(crate) etag: String,
    pub(crate) version: Option<String>,
    pub(crate) last_modified: String,
    /// Function and checksum in S3's byte order; `None` if the object was stored without one.
    pub(crate) sum: Option<(Kind, Whole)>,
}

impl Head {
    /// Parses the answer to a HEAD request.
    pub(crate) fn parse(answer: &Answer) -> Result<Self> {
        let len = answer.header("content-length").and_then(number);
        let sum = KINDS
            .iter()
            .find_map(|(kind, name, _)| Some((*kind, answer.header(name)?)));
        let is_composite = answer
            .header("x-amz-checksum-type")
            .is_some_and(|text| text.eq_ignore_ascii_case("COMPOSITE"));
        let sum = match sum {
            Some((kind, text)) => {
                let (text, count) = without_count(text);
                let bytes = sum_of(kind, text)?;
                match is_composite || count.is_some() {
                    true => Some((kind, Whole::Parts(bytes))),
                    false => Some((kind, Whole::Bytes(bytes))),
                }
            }
            None => None,
        };
        Ok(Self {
            len_bytes: len.ok_or(Malformed("an object without a length"))?,
            etag: answer
                .header("etag")
                .filter(|etag| !etag.is_empty())
                .ok_or(Malformed("an object without an ETag"))?
                .to_owned(),
            version: answer
                .header("x-amz-version-id")
                .filter(|version| *version != "null")
                .map(str::to_owned),
            last_modified: answer.header("last-modified").unwrap_or_default().to_owned(),
            sum,
        })
    }

    /// The number of parts, if the ETag has one: `"HEX-3"`.
    pub(crate) fn parts(&self) -> Option<u64> {
        without_count(self.etag.trim_matches('"')).1
    }
}

fn number(text: &str) -> Option<u64> {
    // `parse` accepts a sign, too.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// Splits off the number of parts, which some servers append to composite checksums.
fn without_count(text: &str) -> (&str, Option<u64>) {
    match text.rsplit_once('-').map(|(before, count)| (before, number(count))) {
        Some((before, Some(count))) => (before, Some(count)),
        _ => (text, None),
    }
}

fn sum_of(kind: Kind, text: &str) -> Result<Vec<u8>> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
    bytes
        .ok()
        .filter(|bytes| bytes.len() == kind.len_bytes())
        .ok_or(Malformed("a checksum of the wrong length for its kind"))
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) number: u64,
    pub(crate) len_bytes: u64,
    /// The checksum in S3's byte order; `None` if the server does not report it.
    pub(crate) sum: Option<Vec<u8>>,
}

/// A page of an object's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The ETag without quotation marks.
    pub(crate) etag: Option<String>,
    pub(crate) object_len_bytes: Option<u64>,
    /// The number of parts on all pages.
    pub(crate) count: Option<u64>,
    pub(crate) parts: Vec<Part>,
    /// The number of the last part before the next page; `None` on the last page.
    pub(crate) next: Option<u64>,
}

impl Parts {
    /// Parses the answer to GetObjectAttributes, for checksums of this kind.
    pub(crate) fn parse(body: &[u8], kind: Kind) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|_| Malformed("a list of parts that is not text"))?;
        let document = document(text).ok_or(Malformed("a list of parts that is not XML"))?;
        let root = document.root_element();
        // Servers differ in the case of the first letter.
        let name = root.tag_name().name();
        if !["GetObjectAttributesResponse", "GetObjectAttributesOutput"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
        {
            return Err(Malformed("an XML document that is not a list of parts"));
        }
        let mut page = Self {
            etag: child(root, "ETag").map(|text| text.trim_matches('"').to_owned()),
            object_len_bytes: child(root, "ObjectSize").map(whole_number).transpose()?,
            ..Self::default()
        };
        let Some(list) = root.children().find(|node| node.has_tag_name_of("ObjectParts")) else {
            return Ok(page);
        };
        // Both names are in use.
        let count = child(list, "TotalPartsCount").or_else(|| child(list, "PartsCount"));
        page.count = count.map(whole_number).transpose()?;
        let name = KINDS.iter().find(|known| known.0 == kind).map_or("", |known| known.2);
        for node in list.children().filter(|node| node.has_tag_name_of("Part")) {
            let number = child(node, "PartNumber").ok_or(Malformed("a part without a number"))?;
            let len = child(node, "Size").ok_or(Malformed("a part without a size"))?;
            let sum = child(node, name)
                .map(|text| sum_of(kind, without_count(text).0))
                .transpose()?;
            page.parts.push(Part {
                number: whole_number(number)?,
                len_bytes: whole_number(len)?,
                sum,
            });
        }
        if child(list, "IsTruncated").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            let next = child(list, "NextPartNumberMarker").ok_or(Malformed("a page of parts without a next one"))?;
            page.next = Some(whole_number(next)?);
        }
        Ok(page)
    }
}

/// Parses XML at a cost proportional to its length. The parser compares an element's attributes
/// with each other, and each element has all namespaces of those around it: 4000 nested ones, 100
/// KB, take 36 s. So long tags and many namespaces are refused; servers send few.
fn document(text: &str) -> Option<roxmltree::Document<'_>> {
    const TAG_LEN_MAX: usize = 4096;
    const SPACES_MAX: usize = 16;
    let is_plain = text.split('<').all(|tag| tag.len() <= TAG_LEN_MAX);
    if !is_plain || text.matches("xmlns").count() > SPACES_MAX {
        return None;
    }
    let options = roxmltree::ParsingOptions {
        nodes_limit: 200_000,
        ..Default::default()
    };
    roxmltree::Document::parse_with_options(text, options).ok()
}

fn whole_number(text: &str) -> Result<u64> {
    number(text).ok_or(Malformed("something other than a number"))
}

/// The text of a child.
fn child<'a>(node: roxmltree::Node<'a, '_>, name: &str) -> Option<&'a str> {
    let found = node.children().find(|node| node.has_tag_name_of(name))?;
    found.text().map(str::trim)
}

trait Named {
    /// Whether the node has this name, in any namespace.
    fn has_tag_name_of(&self, name: &str) -> bool;
}

impl Named for roxmltree::Node<'_, '_> {
    fn has_tag_name_of(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

/// The code in the answer to a request that failed, such as `AccessDenied`; empty if there is none.
pub(crate) fn error_code(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let code = document(text).and_then(|document| child(document.root_element(), "Code").map(str::to_owned));
    // The code is printed, so only plain ones are returned.
    code.filter(|code| code.len() <= 100 && code.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        .unwrap_or_default()
}

/// An object's parts, proven to fit it: all of one length but the last one, which may be shorter.
/// Their checksums are in S3's byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fitting {
    pub(crate) part_len_bytes: u64,
    pub(crate) sums: Vec<Vec<u8>>,
}

/// The reason why parts are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The server does not report their checksums.
    NotReported,
    /// The parts have different lengths.
    Uneven,
    /// The parts do not belong to this object.
    Malformed(&'static str),
}

/// Checks that `parts` are those of the object: in order, without gaps, of its length, as many as
/// announced, and such that the object's own checksum follows from theirs.
pub(crate) fn fit(head: &Head, count: Option<u64>, parts: &[Part]) -> std::result::Result<Fitting, Unfit> {
    let (kind, whole) = head.sum.as_ref().ok_or(Unfit::NotReported)?;
    let sums: Option<Vec<Vec<u8>>> = parts.iter().map(|part| part.sum.clone()).collect();
    let (Some(sums), Some(first), Some((last, before))) = (sums, parts.first(), parts.split_last()) else {
        return Err(Unfit::NotReported);
    };
    let wrong = |what| Err(Unfit::Malformed(what));
    if !parts.is_sorted_by(|one, next| one.number < next.number) {
        return wrong("parts that are not in order");
    }
    let announced = [count, head.parts()].into_iter().flatten();
    if announced.into_iter().any(|count| count != parts.len() as u64) {
        return wrong("a different number of parts than announced");
    }
    let len = parts
        .iter()
        .try_fold(0_u64, |len, part| len.checked_add(part.len_bytes));
    if len != Some(head.len_bytes) || parts.iter().any(|part| part.len_bytes == 0) {
        return wrong("parts that do not add up to the object");
    }
    if before.iter().any(|part| part.len_bytes != first.len_bytes) || last.len_bytes > first.len_bytes {
        return Err(Unfit::Uneven);
    }
    let made = match whole {
        Whole::Parts(_) => {
            let layout = byteback_checksums::source::Layout {
                kind: *kind,
                salt: Vec::new(),
                block_len: u32::MAX,
                tail: byteback_checksums::source::Tail::AsIs,
            };
            let mut made = Vec::new();
            layout.append_sum(&sums.concat(), &mut made);
            in_their_order(*kind, &made)
        }
        Whole::Bytes(_) => match combined(*kind, &sums, parts) {
            Some(made) => made,
            // With a function whose values cannot be combined, nothing proves that the parts are
            // this object's.
            None => return Err(Unfit::NotReported),
        },
    };
    let (Whole::Parts(reported) | Whole::Bytes(reported)) = whole;
    match made == *reported {
        true => Ok(Fitting {
            part_len_bytes: first.len_bytes,
            sums,
        }),
        false => wrong("parts whose checksums do not combine to the object's"),
    }
}

/// The CRC of consecutive parts, computed from theirs.
fn combined(kind: Kind, sums: &[Vec<u8>], parts: &[Part]) -> Option<Vec<u8>> {
    let algorithm = match kind {
        Kind::Crc32c => crc_fast::CrcAlgorithm::Crc32Iscsi,
        Kind::Crc32 => crc_fast::CrcAlgorithm::Crc32IsoHdlc,
        Kind::Crc64Nvme => crc_fast::CrcAlgorithm::Crc64Nvme,
        _ => return None,
    };
    let value = |sum: &Vec<u8>| sum.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let mut crc = None;
    for (sum, part) in sums.iter().zip(parts) {
        crc = Some(match crc {
            None => value(sum),
            Some(crc) => crc_fast::checksum_combine(algorithm, crc, value(sum), part.len_bytes),
        });
    }
    let bytes = crc?.to_be_bytes();
    bytes.get(bytes.len() - kind.len_bytes()..).map(<[u8]>::to_vec)
}

/// Converts between S3's byte order of CRCs, big-endian, and that of [`Kind`], little-endian.
pub(crate) fn in_their_order(kind: Kind, sum: &[u8]) -> Vec<u8> {
    let mut sum = sum.to_vec();
    if matches!(kind, Kind::Crc32 | Kind::Crc32c | Kind::Crc64Nvme) {
        sum.reverse();
    }
    sum
}

#[cfg(test)]
mod tests;
