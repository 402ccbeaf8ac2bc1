//! The address of an object: `ceph://FOLDER?pg=PG&object=NAME`.

use std::path::PathBuf;

const SHAPE: &str = "an object's address is ceph://FOLDER?pg=PG&object=NAME with the OSD's folder (/var/lib/ceph/osd/ceph-0), with &namespace=NAMESPACE or &snap=NUMBER where it has one";

/// An object in the store of an OSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The OSD's folder (`/var/lib/ceph/osd/ceph-0`).
    pub osd: PathBuf,
    /// The placement group, as Ceph writes it: `1.1f`.
    pub pg: String,
    /// The object's name.
    pub object: String,
    /// The namespace that it is in; mostly the empty one.
    pub namespace: String,
    /// The number of the clone that a snapshot kept; `None` for the current object.
    pub snap: Option<u32>,
}

impl Place {
    /// Parses `ceph://FOLDER?pg=PG&object=NAME`. Names are taken literally, except for `%` and two
    /// hexadecimal digits, which stand for a byte.
    ///
    /// # Errors
    /// The defect of the address, in words.
    pub fn new(url: &str) -> Result<Self, &'static str> {
        let rest = url.strip_prefix("ceph://").filter(|rest| rest.starts_with('/'));
        let (osd, fields) = rest.and_then(|rest| rest.split_once('?')).ok_or(SHAPE)?;
        let (mut pg, mut object, mut namespace, mut snap) = (None, None, None, None);
        for field in fields.split('&') {
            let (key, value) = field.split_once('=').ok_or(SHAPE)?;
            let place = match key {
                "pg" => &mut pg,
                "object" => &mut object,
                "namespace" => &mut namespace,
                "snap" => &mut snap,
                _ => return Err(SHAPE),
            };
            if place.replace(unescaped(value)?).is_some() {
                return Err(SHAPE);
            }
        }
        let (pg, object) = (pg.ok_or(SHAPE)?, object.ok_or(SHAPE)?);
        let snap = match snap.map(|snap| snap.parse()) {
            None => None,
            Some(Ok(snap)) => Some(snap),
            Some(Err(_)) => return Err("a snapshot is a number; 'rados listsnaps' lists the clones"),
        };
        is_pg(&pg)?;
        if object.is_empty() || object.contains('\0') {
            return Err(SHAPE);
        }
        Ok(Self {
            osd: unescaped(osd)?.into(),
            pg,
            object,
            namespace: namespace.unwrap_or_default(),
            snap,
        })
    }
}

/// Checks that it is the number of a pool and, hexadecimal, that of a placement group in it.
fn is_pg(pg: &str) -> Result<(), &'static str> {
    const PG: &str = "a placement group is written like 1.1f; 'ceph osd map POOL OBJECT' shows it";
    let (pool, number) = pg.split_once('.').ok_or(PG)?;
    let is_pool = !pool.is_empty() && pool.bytes().all(|byte| byte.is_ascii_digit());
    let is_hexadecimal = |text: &str| {
        let mut bytes = text.bytes();
        !text.is_empty() && bytes.all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    match number.split_once('s') {
        Some((number, shard)) if is_pool && is_hexadecimal(number) && is_hexadecimal(shard) => {
            Err("in an erasure-coded pool an OSD has a part of each object, whose checksums are not the object's")
        }
        None if is_pool && is_hexadecimal(number) => Ok(()),
        _ => Err(PG),
    }
}

fn unescaped(text: &str) -> Result<String, &'static str> {
    const ESCAPE: &str = "'%' begins a byte in hexadecimal, as in %25 for itself; the address must be UTF-8";
    let mut parts = text.split('%');
    let mut whole = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(ESCAPE)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(ESCAPE);
        }
        whole.push(u8::from_str_radix(digits, 16).map_err(|_| ESCAPE)?);
        whole.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(whole).map_err(|_| ESCAPE)
}
