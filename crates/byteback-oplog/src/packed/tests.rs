use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use byteback_host::random::SplitMix64;
use byteback_model::NodeId;
use redb::{ReadableDatabase, ReadableTableMetadata};

use super::*;
use crate::database::rows::NameRow;

const TABLE: Definition<NameRow> = TableDefinition::new("rows");

type Model = BTreeMap<(u64, Vec<u8>), NodeId>;

fn database() -> redb::Database {
    let backend = redb::backends::InMemoryBackend::new();
    let database = redb::Builder::new().create_with_backend(backend).unwrap();
    let txn = database.begin_write().unwrap();
    txn.open_table(TABLE).unwrap();
    txn.commit().unwrap();
    database
}

fn change(database: &redb::Database, act: impl FnOnce(&mut PackedTable<'_, NameRow>)) -> i64 {
    let txn = database.begin_write().unwrap();
    let mut table = PackedTable::<NameRow>::open(&txn, TABLE).unwrap();
    act(&mut table);
    let added = table.close().unwrap();
    txn.commit().unwrap();
    added
}

fn row(parent: u64, name: &[u8], child: u64) -> NameRow {
    NameRow {
        parent: NodeId(parent),
        name: name.to_vec(),
        child: NodeId(child),
    }
}

fn rows_of(model: &Model, from: (u64, &[u8])) -> Vec<NameRow> {
    let from = (from.0, from.1.to_vec());
    let rows = model.range(from..);
    rows.map(|((parent, name), child)| row(*parent, name, child.0))
        .collect()
}

/// The lengths of all packs, after a look at what must hold of them.
fn packs(database: &redb::Database) -> Vec<usize> {
    let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
    let mut last: Option<NameRow> = None;
    let mut lens = Vec::new();
    for entry in table.iter().unwrap() {
        let (key, pack) = entry.unwrap();
        let rows = decode::<NameRow>(pack.value()).unwrap();
        let first = rows.first().expect("a pack is empty");
        assert!(key.value() <= first.key(), "a pack's key is behind its first row");
        assert!(
            last.is_none_or(|last| last.key() < key.value()),
            "a pack's key is within the pack before"
        );
        last = rows.into_iter().next_back();
        lens.push(pack.value().len());
    }
    lens
}

fn assert_is(database: &redb::Database, model: &Model, hint: &str) {
    let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
    let all: Vec<NameRow> = PackCache::default()
        .rows_from(&table, &(0, &[][..]))
        .unwrap()
        .map(|row| row.unwrap())
        .collect();
    assert_eq!(all, rows_of(model, (0, b"")), "{hint}");
    assert!(packs(database).iter().all(|len| *len <= PACK_BYTES_MAX), "{hint}");
}

#[test]
fn a_packed_table_is_an_ordered_map() {
    for seed in 0..30 {
        let mut random = SplitMix64::new(seed);
        let (database, mut model) = (database(), Model::new());
        let cache = PackCache::<NameRow>::default();
        // Few keys replace and remove each other, many fill packs.
        let names = [40, 3_000][random.below(2) as usize];
        let key = |random: &mut SplitMix64| {
            let nth = random.below(names);
            let name = format!("{}-{nth}", "long".repeat((nth % 60) as usize));
            (nth % 7, name.into_bytes())
        };
        for round in 0..12 {
            let hint = format!("seed {seed}, round {round}");
            let is_ordered = random.below(2) == 0;
            let removes = random.below(10);
            let mut keys: Vec<_> = (0..random.below(1_500)).map(|_| key(&mut random)).collect();
            if is_ordered {
                keys.sort();
            }
            let before = model.len();
            let added = change(&database, |table| {
                for (parent, name) in keys {
                    let entry = model.entry((parent, name.clone()));
                    let has = table.get(&(parent, &name[..])).unwrap().map(|row| row.child);
                    let expected = match &entry {
                        Entry::Occupied(there) => Some(*there.get()),
                        Entry::Vacant(_) => None,
                    };
                    assert_eq!(has, expected, "{hint}");
                    let replaced = if random.below(10) < removes {
                        if let Entry::Occupied(there) = entry {
                            there.remove();
                        }
                        table.remove(&(parent, &name[..]))
                    } else {
                        let child = random.below(1 << 40);
                        entry.insert_entry(NodeId(child));
                        table.insert(row(parent, &name, child))
                    };
                    assert_eq!(replaced.unwrap().map(|row| row.child), expected, "{hint}");
                }
            });
            assert_eq!(added, model.len() as i64 - before as i64, "{hint}");
            assert_is(&database, &model, &hint);
            let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
            for _ in 0..20 {
                let (parent, name) = key(&mut random);
                let found = cache.get(&table, &(parent, &name[..])).unwrap();
                let expected = model.get(&(parent, name.clone()));
                assert_eq!(found.map(|row| row.child), expected.copied(), "{hint}");
                let rest = cache.rows_from(&table, &(parent, &name[..])).unwrap();
                let rest: Vec<_> = rest.map(|row| row.unwrap()).collect();
                assert_eq!(rest, rows_of(&model, (parent, &name)), "{hint}");
            }
        }
    }
}

#[test]
fn rows_added_in_order_fill_their_packs() {
    let database = database();
    for portion in 0..10 {
        change(&database, |table| {
            for nth in portion * 1_000..(portion + 1) * 1_000 {
                table.insert(row(1, format!("file-{nth:06}").as_bytes(), nth)).unwrap();
            }
        });
    }
    let lens = packs(&database);
    let bytes: usize = lens.iter().sum();
    assert!(bytes < 10_000 * 8, "{bytes} bytes");
    let full = lens.iter().filter(|len| **len > PACK_BYTES_MAX - 20).count();
    assert!(full + 1 >= lens.len(), "{full} of {} packs are full", lens.len());
}

#[test]
fn packs_that_lose_their_rows_are_joined() {
    let database = database();
    let name = |nth: u64| format!("file-{nth:06}").into_bytes();
    change(&database, |table| {
        for nth in 0..10_000 {
            table.insert(row(1, &name(nth), nth)).unwrap();
        }
    });
    let before = packs(&database).len();
    change(&database, |table| {
        for nth in (0..10_000).filter(|nth| nth % 50 != 0) {
            table.remove(&(1, &name(nth)[..])).unwrap();
        }
    });
    let after = packs(&database);
    assert!(after.len() * 5 < before, "{} packs of {before}", after.len());
    assert!(
        after[..after.len() - 1].iter().all(|len| *len >= PACK_BYTES_MIN),
        "{after:?}"
    );
    change(&database, |table| {
        for nth in 0..10_000 {
            table.remove(&(1, &name(nth)[..])).unwrap();
        }
    });
    let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
    assert_eq!(table.len().unwrap(), 0);
}

#[test]
fn a_name_longer_than_a_pack_has_one_of_its_own() {
    let (database, mut model) = (database(), Model::new());
    change(&database, |table| {
        for nth in 0..6_u64 {
            let name = vec![b'x'; 1 + usize::try_from(nth % 3).unwrap() * 4_000];
            table.insert(row(nth, &name, nth)).unwrap();
            model.insert((nth, name), NodeId(nth));
        }
    });
    let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
    let all: Vec<NameRow> = PackCache::default()
        .rows_from(&table, &(0, &[][..]))
        .unwrap()
        .map(|row| row.unwrap())
        .collect();
    assert_eq!(all, rows_of(&model, (0, b"")));
}

#[test]
fn a_pack_that_was_written_wrong_is_damage() {
    let rows = [row(1, b"a", 5), row(1, b"b", 6)];
    let good = encode(&rows);
    assert_eq!(decode::<NameRow>(&good), Ok(rows.to_vec()));
    let backwards = encode(&[rows[1].clone(), rows[0].clone()]);
    let twice = encode(&[rows[0].clone(), rows[0].clone()]);
    let other_version = seal([&[2], &good[1..good.len() - 4]].concat());
    let mut cut = good[..good.len() - 5].to_vec();
    cut = seal(cut);
    for bad in [
        &backwards,
        &twice,
        &other_version,
        &cut,
        &good[1..].to_vec(),
        &Vec::new(),
    ] {
        assert_eq!(decode::<NameRow>(bad), Err(Malformed));
        let database = database();
        let txn = database.begin_write().unwrap();
        txn.open_table(TABLE)
            .unwrap()
            .insert((1, &b"a"[..]), bad.as_slice())
            .unwrap();
        let mut table = PackedTable::<NameRow>::open(&txn, TABLE).unwrap();
        let refused = table.insert(row(1, b"c", 7)).unwrap_err();
        assert!(matches!(refused, LogError::Damaged { what: "name of a node" }));
        drop(table);
        txn.commit().unwrap();
        let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
        assert!(PackCache::<NameRow>::default().get(&table, &(2, &b""[..])).is_err());
        let rows = PackCache::<NameRow>::default().rows_from(&table, &(0, &[][..]));
        assert!(rows.is_err());
    }
}
