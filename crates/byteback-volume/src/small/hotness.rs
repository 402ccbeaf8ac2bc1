//! Hotness of files (`HCluster`, DeltaFS section 4.2.1): which files are written much and which are
//! read much, compared with each other.
//!
//! Pages read and written are counted for each file in a *window* of a fixed number of operations:
//! the half of the window that is being filled, and the previous half. Files are points with two
//! coordinates, the logarithms of both counts. They fall into at most four clusters by k-means,
//! whose first centroids are drawn far from each other (k-means++). The next time the centroids
//! start where they were, and move to where files are now; one that is near to no file any more is
//! drawn anew, and all are if that turns out better.
//!
//! A cluster is *write-hot* if its centroid is in the upper half of the range of writes, and
//! *read-hot* if it is in the upper half of the range of reads or writes; a file that is read more
//! than written is read-hot in any case. So even a single file has an answer.
//!
//! **Invariants.** The same calls give the same answers: no clock, and random numbers from a seed.
//! Memory has a limit.
//!
//! Out of scope: deciding what follows from it.

use std::collections::BTreeMap;

use byteback_host::random::SplitMix64;

use crate::format::Nid;

/// Clusters: read much or little, written much or little.
const CLUSTERS: usize = 4;

/// Most files counted; further ones are not until the window has moved on.
const FILES_MAX: usize = 1 << 16;

/// Most files that move the centroids: a regular sample of all.
const POINTS_MAX: usize = 512;

/// Most steps of k-means: from centroids that were right a moment ago it takes few.
const ROUNDS_MAX: usize = 12;

/// Operations after which clusters are computed again.
const STALE_OPERATIONS: u64 = 256;

/// Trials with newly drawn centroids beside the existing ones: k-means may have settled in a local
/// optimum.
const TRIALS: usize = 3;

/// A file with fewer pages written in a window is not write-hot, whatever others are.
const WRITTEN_PAGES_MIN: u64 = 8;

/// Counts of pages of a file that were read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) read_pages: u64,
    pub(crate) written_pages: u64,
}

/// Hotness of a file, compared with others (DeltaFS section 4.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    /// The file is read much.
    pub is_read_hot: bool,
    /// The file is written much.
    pub is_write_hot: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    reads: f64,
    writes: f64,
}

impl Uses {
    fn point(self) -> Point {
        Point {
            reads: (self.read_pages as f64).ln_1p(),
            writes: (self.written_pages as f64).ln_1p(),
        }
    }
}

impl Point {
    fn distance(self, other: Self) -> f64 {
        (self.reads - other.reads).powi(2) + (self.writes - other.writes).powi(2)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hotness {
    /// Half of a window.
    half_operations: u64,
    operations: u64,
    now: BTreeMap<Nid, Uses>,
    before: BTreeMap<Nid, Uses>,
    centroids: Vec<Point>,
    /// The operation at which they were last moved.
    clustered_at: Option<u64>,
    random: SplitMix64,
}

impl Hotness {
    /// An empty state, with a window of `window_operations` and random numbers from `seed`.
    pub(crate) fn new(window_operations: u64, seed: u64) -> Self {
        Self {
            half_operations: (window_operations / 2).max(1),
            operations: 0,
            now: BTreeMap::new(),
            before: BTreeMap::new(),
            centroids: Vec::new(),
            clustered_at: None,
            random: SplitMix64::new(seed),
        }
    }

    fn count(&mut self, ino: Nid, uses: Uses) {
        if self.now.len() < FILES_MAX || self.now.contains_key(&ino) {
            let counted = self.now.entry(ino).or_default();
            counted.read_pages += uses.read_pages;
            counted.written_pages += uses.written_pages;
        }
        self.operations += 1;
        if self.operations.is_multiple_of(self.half_operations) {
            self.before = std::mem::take(&mut self.now);
        }
    }

    /// Counts pages of a file as read, in one operation.
    pub(crate) fn read(&mut self, ino: Nid, pages: u64) {
        let read_pages = pages;
        self.count(
            ino,
            Uses {
                read_pages,
                ..Uses::default()
            },
        );
    }

    /// Counts pages of a file as written, in one operation.
    pub(crate) fn wrote(&mut self, ino: Nid, pages: u64) {
        let written_pages = pages;
        self.count(
            ino,
            Uses {
                written_pages,
                ..Uses::default()
            },
        );
    }

    /// Forgets a removed file: its number will be reused.
    pub(crate) fn forget(&mut self, ino: Nid) {
        self.now.remove(&ino);
        self.before.remove(&ino);
    }

    /// Counts of a file in the window.
    fn uses(&self, ino: Nid) -> Uses {
        let of = |half: &BTreeMap<Nid, Uses>| half.get(&ino).copied().unwrap_or_default();
        let (now, before) = (of(&self.now), of(&self.before));
        Uses {
            read_pages: now.read_pages + before.read_pages,
            written_pages: now.written_pages + before.written_pages,
        }
    }

    /// Current hotness of a file.
    pub(crate) fn heat(&mut self, ino: Nid) -> Heat {
        let is_stale = self
            .clustered_at
            .is_none_or(|at| at + STALE_OPERATIONS <= self.operations);
        if is_stale {
            self.cluster();
        }
        self.heat_of(self.uses(ino))
    }

    /// Number of files that are written much and read little.
    pub(crate) fn write_hot_files(&mut self) -> u64 {
        self.cluster();
        let is_it = |uses: &Uses| {
            self.heat_of(*uses)
                == Heat {
                    is_write_hot: true,
                    is_read_hot: false,
                }
        };
        self.all().iter().filter(|uses| is_it(uses)).count() as u64
    }

    fn heat_of(&self, uses: Uses) -> Heat {
        let point = uses.point();
        let nearest = nearest(&self.centroids, point).and_then(|(index, _)| self.centroids.get(index));
        let Some(centroid) = nearest else {
            return Heat::default();
        };
        let greatest = |of: fn(&Point) -> f64| self.centroids.iter().map(of).fold(0.0, f64::max);
        let (reads, writes) = (greatest(|point| point.reads), greatest(|point| point.writes));
        Heat {
            is_read_hot: uses.read_pages > uses.written_pages
                || uses.read_pages > 0 && centroid.reads * 2.0 >= reads.max(writes),
            is_write_hot: uses.written_pages >= WRITTEN_PAGES_MIN && centroid.writes * 2.0 >= writes,
        }
    }

    /// All files of the window.
    fn all(&self) -> Vec<Uses> {
        let later = self.before.keys().filter(|ino| !self.now.contains_key(ino));
        self.now.keys().chain(later).map(|ino| self.uses(*ino)).collect()
    }

    /// Moves the centroids to where files are now.
    fn cluster(&mut self) {
        self.clustered_at = Some(self.operations);
        let files = self.all();
        let step = files.len().div_ceil(POINTS_MAX).max(1);
        let points: Vec<Point> = files.iter().step_by(step).map(|uses| uses.point()).collect();
        let mut best: Option<(f64, Vec<Point>)> = None;
        for _ in 0..=TRIALS {
            self.settle(&points);
            let distance = far_in_all(&self.centroids, &points);
            let settled = std::mem::take(&mut self.centroids);
            if best.as_ref().is_none_or(|(least, _)| distance < *least) {
                best = Some((distance, settled));
            }
        }
        self.centroids = best.map(|(_, centroids)| centroids).unwrap_or_default();
    }

    fn settle(&mut self, points: &[Point]) {
        for _ in 0..ROUNDS_MAX {
            self.draw_missing(points);
            let moved = means(&self.centroids, points);
            let is_settled = moved == self.centroids;
            self.centroids = moved;
            if is_settled {
                break;
            }
        }
    }

    /// Draws missing centroids: a file is the more likely, the farther it is from the existing ones
    /// (k-means++).
    fn draw_missing(&mut self, points: &[Point]) {
        while self.centroids.len() < CLUSTERS {
            let far = |point: &Point| nearest(&self.centroids, *point).map_or(1.0, |(_, distance)| distance);
            let total: f64 = points.iter().map(far).sum();
            if total <= f64::EPSILON {
                return;
            }
            let mut left = self.random.below(1 << 32) as f64 / (1u64 << 32) as f64 * total;
            let mut drawn = None;
            for point in points.iter().filter(|point| far(point) > 0.0) {
                drawn = Some(*point);
                left -= far(point);
                if left < 0.0 {
                    break;
                }
            }
            match drawn {
                Some(point) => self.centroids.push(point),
                None => return,
            }
        }
    }
}

/// The nearest of the centroids, the first of those that are equally near, and its distance.
fn nearest(centroids: &[Point], point: Point) -> Option<(usize, f64)> {
    let distances = centroids.iter().map(|centroid| centroid.distance(point)).enumerate();
    distances.min_by(|(_, one), (_, other)| one.total_cmp(other))
}

/// Sum of the distances of points from their centroids.
fn far_in_all(centroids: &[Point], points: &[Point]) -> f64 {
    let distance = |point: &Point| nearest(centroids, *point).map_or(0.0, |(_, distance)| distance);
    points.iter().map(distance).sum()
}

/// The mean of the points nearest to each centroid; centroids without points are left out.
fn means(centroids: &[Point], points: &[Point]) -> Vec<Point> {
    let mut sums = vec![(Point::default(), 0u32); centroids.len()];
    for point in points {
        let place = nearest(centroids, *point).and_then(|(index, _)| sums.get_mut(index));
        if let Some((sum, count)) = place {
            sum.reads += point.reads;
            sum.writes += point.writes;
            *count += 1;
        }
    }
    let met = sums.into_iter().filter(|(_, count)| *count > 0);
    met.map(|(sum, count)| Point {
        reads: sum.reads / f64::from(count),
        writes: sum.writes / f64::from(count),
    })
    .collect()
}

#[cfg(test)]
mod tests;
