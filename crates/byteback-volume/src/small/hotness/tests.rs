use super::*;

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

/// Every operation since the beginning, in order; what is in the window is added up when it is
/// asked for.
#[derive(Default)]
struct Naive(Vec<(Nid, Uses)>);

impl Naive {
    fn uses(&self, ino: Nid, half: u64) -> Uses {
        let halves = self.0.len() as u64 / half;
        let from = halves.saturating_sub(1) * half;
        let mut sum = Uses::default();
        for (_, uses) in self.0.iter().skip(from as usize).filter(|(of, _)| *of == ino) {
            sum.read_pages += uses.read_pages;
            sum.written_pages += uses.written_pages;
        }
        sum
    }
}

#[test]
fn a_window_counts_what_a_list_of_all_operations_does() {
    for seed in seeds(20) {
        let mut random = SplitMix64::new(seed);
        let window = 2 + random.below(60);
        let mut hotness = Hotness::new(window, seed);
        let mut naive = Naive::default();
        for number in 0..500 {
            let ino = Nid(1 + random.below(7) as u32);
            let pages = 1 + random.below(9);
            let uses = match random.coin() {
                true => Uses {
                    read_pages: pages,
                    ..Uses::default()
                },
                false => Uses {
                    written_pages: pages,
                    ..Uses::default()
                },
            };
            match uses.read_pages {
                0 => hotness.wrote(ino, pages),
                _ => hotness.read(ino, pages),
            }
            naive.0.push((ino, uses));
            for ino in (1..8).map(Nid) {
                let expected = naive.uses(ino, window / 2);
                assert_eq!(
                    hotness.uses(ino),
                    expected,
                    "seed {seed}, operation {number}, file {ino}"
                );
            }
        }
    }
}

/// How far points are from their centroids in all, looked for without any shortcut.
fn inertia(centroids: &[Point], points: &[Point]) -> f64 {
    let mut sum = 0.0;
    for point in points {
        let mut least = f64::INFINITY;
        for centroid in centroids {
            least = least.min(centroid.distance(*point));
        }
        sum += least;
    }
    sum
}

#[test]
fn centroids_come_nearer_each_step_and_are_their_clusters_means() {
    for seed in seeds(50) {
        let mut random = SplitMix64::new(seed);
        let mut hotness = Hotness::new(1_000_000, seed);
        for ino in 0..1 + random.below(60) as u32 {
            let (reads, writes) = (random.below(12), random.below(12));
            hotness.read(Nid(ino), random.below(1 << reads));
            hotness.wrote(Nid(ino), random.below(1 << writes));
        }
        let points: Vec<Point> = hotness.all().iter().map(|uses| uses.point()).collect();
        hotness.draw_missing(&points);
        let mut distinct = points.clone();
        distinct.sort_by(|one, other| (one.reads.total_cmp(&other.reads)).then(one.writes.total_cmp(&other.writes)));
        distinct.dedup();
        assert_eq!(hotness.centroids.len(), distinct.len().min(CLUSTERS), "seed {seed}");
        let mut before = inertia(&hotness.centroids, &points);
        for _ in 0..30 {
            hotness.centroids = means(&hotness.centroids, &points);
            let after = inertia(&hotness.centroids, &points);
            assert!(after <= before + 1e-9, "seed {seed}: {before} became {after}");
            before = after;
        }
        for (index, centroid) in hotness.centroids.iter().enumerate() {
            let own: Vec<_> = points
                .iter()
                .filter(|point| nearest(&hotness.centroids, **point).unwrap().0 == index)
                .collect();
            let middle = own.iter().map(|point| point.writes).sum::<f64>() / own.len() as f64;
            assert!((middle - centroid.writes).abs() < 1e-9, "seed {seed}");
        }
    }
}

/// Four groups that nobody could confuse, with some noise, and where they are changes in the
/// middle.
#[test]
fn files_are_told_apart_and_centroids_follow_them() {
    for seed in seeds(30) {
        let mut random = SplitMix64::new(seed);
        let mut hotness = Hotness::new(4_000, seed);
        for phase in 0..2 {
            let kind = |ino: u32| (ino + phase) % 4;
            for _ in 0..6_000 {
                let ino = random.below(40) as u32;
                let (reads, writes) = [(0, 12), (12, 0), (12, 12), (0, 0)][kind(ino) as usize];
                match random.coin() {
                    true => hotness.read(Nid(ino), reads + random.below(2)),
                    false => hotness.wrote(Nid(ino), writes + u64::from(random.below(12) == 0)),
                }
            }
            for ino in 0..40 {
                let heat = hotness.heat(Nid(ino));
                let expected = Heat {
                    is_read_hot: matches!(kind(ino), 1 | 2),
                    is_write_hot: matches!(kind(ino), 0 | 2),
                };
                // A hardly used file may be read a little more than written.
                let is_cold = kind(ino) == 3;
                let is_right = if is_cold { !heat.is_write_hot } else { heat == expected };
                assert!(
                    is_right,
                    "seed {seed}, phase {phase}, file {ino}: {heat:?}, {:?}",
                    hotness.uses(Nid(ino))
                );
            }
            assert_eq!(hotness.write_hot_files(), 10, "seed {seed}");
        }
    }
}

#[test]
fn a_file_that_is_alone_is_what_it_does() {
    let heat = |reads, writes| {
        let mut hotness = Hotness::new(1_000, 1);
        hotness.read(Nid(5), reads);
        hotness.wrote(Nid(5), writes);
        let heat = hotness.heat(Nid(5));
        (heat.is_read_hot, heat.is_write_hot)
    };
    assert_eq!(heat(0, 100), (false, true));
    assert_eq!(heat(3, 100), (false, true));
    assert_eq!(heat(80, 100), (true, true));
    assert_eq!(heat(100, 2), (true, false));
    assert_eq!(heat(0, 3), (false, false));
    let mut unknown = Hotness::new(1_000, 1);
    assert_eq!(unknown.heat(Nid(5)), Heat::default());
    unknown.wrote(Nid(5), 100);
    unknown.forget(Nid(5));
    assert_eq!(unknown.heat(Nid(5)), Heat::default());
}

#[test]
fn the_same_calls_give_the_same_answers_and_memory_has_a_limit() {
    let run = || {
        let mut random = SplitMix64::new(3);
        let mut hotness = Hotness::new(1 << 20, 9);
        for _ in 0..FILES_MAX + 5_000 {
            hotness.wrote(Nid(random.below(1 << 30) as u32), random.below(100));
        }
        assert!(hotness.now.len() <= FILES_MAX);
        hotness.cluster();
        hotness.centroids
    };
    assert_eq!(run(), run());
}
