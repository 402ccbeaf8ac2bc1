//! The server, and the network before it.
//!
//! The server is the real one over the real store, with its files on the machine's memory. It runs
//! on a runtime with a paused clock, which moves only when nothing is left to be done: so it is
//! known here when no answer will come. A crash drops it and opens the store again.
//!
//! A request is handed over as a whole, when its sender begins to wait for the answer. Its fate is
//! drawn then ([`Fate`]).
//!
//! The store keeps one token for each device. Where a device is to get another one, the network
//! exchanges the token in its requests ([`SimNetwork::exchange_tokens`]).
//!
//! A message on a line counts as a request. The network does not know what is in it: so lines end
//! when a token is exchanged, and none is opened while requests of some method are lost.

use super::world::{News, World};
use byteback_client::{Connection, Network};
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;
use byteback_server::{InProcess, ServerConfig};
use byteback_store::catalog::{Catalog, SqliteCatalog};
use byteback_store::segments::SegmentFiles;
use byteback_store::{Store, StoreLimits, StoreParts};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

/// The server's own time advances by this only when it has nothing to do.
const IDLE: Duration = Duration::from_millis(1);

struct Serving {
    runtime: Runtime,
    doors: InProcess,
    store: Store,
}

/// The simulated server.
pub(crate) struct SimServer {
    world: Arc<World>,
    data: PathBuf,
    serving: Mutex<(u64, Option<Serving>)>,
}

impl SimServer {
    pub(crate) fn new(world: &Arc<World>, data: &Path) -> Arc<Self> {
        let server = Arc::new(Self {
            world: Arc::clone(world),
            data: data.to_owned(),
            serving: Mutex::new((0, None)),
        });
        server.start();
        server
    }

    pub(crate) fn start(&self) {
        let mut serving = self.serving.lock().unwrap();
        if serving.1.is_some() {
            return;
        }
        serving.0 += 1;
        let dir = RealDir::create(&self.data).unwrap();
        let catalog = SqliteCatalog::open(self.data.join("catalog.sqlite")).unwrap();
        let used = catalog.read().unwrap().segment_id_max().unwrap();
        let segments = SegmentFiles::open(dir.subdir("segments").unwrap(), used).unwrap();
        let store = Store::from_parts(StoreParts {
            catalog: Arc::new(catalog),
            segments: Arc::new(segments),
            clock: self.world.clock(),
            randomness: Arc::new(SimRandomness::new(serving.0)),
            limits: StoreLimits::default(),
        });
        let store = store.unwrap();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let (doors, served) = InProcess::serve(ServerConfig::default(), store.clone());
        runtime.spawn(served);
        serving.1 = Some(Serving { runtime, doors, store });
        drop(serving);
        self.world.note("server begins");
        self.world.tell(News::Server);
    }

    /// Ends the server at once.
    pub(crate) fn crash(&self) {
        let crashed = self.serving.lock().unwrap().1.take();
        if crashed.is_some() {
            self.world.note("server crashes");
        }
        drop(crashed);
        self.world.tell(News::Server);
    }

    pub(crate) fn store(&self) -> Store {
        self.store_if_up().unwrap()
    }

    pub(crate) fn store_if_up(&self) -> Option<Store> {
        let serving = self.serving.lock().unwrap();
        serving.1.as_ref().map(|serving| serving.store.clone())
    }

    fn open(&self) -> io::Result<(u64, DuplexStream)> {
        let serving = self.serving.lock().unwrap();
        match &serving.1 {
            Some(up) => Ok((serving.0, up.doors.connect())),
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Hands bytes to the server, as far as it takes them.
    fn give(&self, life: u64, stream: &mut DuplexStream, bytes: &[u8]) -> io::Result<()> {
        let serving = self.serving.lock().unwrap();
        let up = serving.1.as_ref().filter(|_| serving.0 == life);
        let up = up.ok_or(io::ErrorKind::ConnectionReset)?;
        let taken = up
            .runtime
            .block_on(async { tokio::time::timeout(IDLE, stream.write_all(bytes)).await });
        // Bytes that it does not take were refused unheard, and its answer says why.
        taken.unwrap_or(Ok(()))
    }

    /// The server's next bytes; `None`: none now.
    fn take(&self, life: u64, stream: &mut DuplexStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let serving = self.serving.lock().unwrap();
        let up = serving.1.as_ref().filter(|_| serving.0 == life);
        let up = up.ok_or(io::ErrorKind::ConnectionReset)?;
        let taken = up
            .runtime
            .block_on(async { tokio::time::timeout(IDLE, stream.read(buffer)).await });
        taken.ok().transpose()
    }

    /// Lets the server do all pending work.
    fn settle(&self) {
        if let Some(up) = &self.serving.lock().unwrap().1 {
            up.runtime.block_on(async { tokio::time::sleep(IDLE).await });
        }
    }

    /// Lets the server do all pending work on a connection, and drops its answer.
    fn finish(&self, life: u64, stream: &mut DuplexStream) {
        let mut buffer = vec![0; 64 * 1024];
        while matches!(self.take(life, stream, &mut buffer), Ok(Some(1..))) {}
    }
}

/// Numbers of faults in 1000 requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// The request is lost.
    pub(crate) lost: u64,
    /// The request is lost for its sender, and arrives later.
    pub(crate) late: u64,
    /// The request arrives, and once more later.
    pub(crate) twice: u64,
    /// The connection is cut in the middle of the request.
    pub(crate) request_cut: u64,
    /// The answer is lost.
    pub(crate) answer_lost: u64,
    /// The connection is cut in the middle of the answer.
    pub(crate) answer_cut: u64,
    /// No connection can be made.
    pub(crate) refused: u64,
}

/// Fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Well,
    Lost,
    Late,
    Twice,
    RequestCut,
    AnswerLost,
    AnswerCut,
}

struct Link {
    faults: Faults,
    random: SplitMix64,
    /// Whether nothing passes.
    is_cut: bool,
    /// Longest latency of a request and of an answer.
    latency_ns_max: u64,
    /// Disk of the machine: when its power is cut, the machine sends nothing any more.
    disk: Option<SimDisk>,
    /// Method of requests that are all lost.
    lost_method: Option<&'static str>,
    /// Connections that were made before the newest generation are broken.
    generation: u64,
    /// Token that the machine has to show, and the one that the server knows, of the same length.
    tokens: Option<(String, String)>,
}

/// The network between one machine and the server.
#[derive(Clone)]
pub(crate) struct SimNetwork {
    world: Arc<World>,
    server: Arc<SimServer>,
    link: Arc<Mutex<Link>>,
    name: &'static str,
}

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNetwork")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SimNetwork {
    pub(crate) fn new(world: &Arc<World>, server: &Arc<SimServer>, name: &'static str, seed: u64) -> Self {
        let link = Link {
            faults: Faults::default(),
            random: SplitMix64::new(seed),
            is_cut: false,
            latency_ns_max: 0,
            disk: None,
            lost_method: None,
            generation: 0,
            tokens: None,
        };
        Self {
            world: Arc::clone(world),
            server: Arc::clone(server),
            link: Arc::new(Mutex::new(link)),
            name,
        }
    }

    pub(crate) fn set(&self, faults: Faults, latency_ns_max: u64) {
        let mut link = self.link.lock().unwrap();
        (link.faults, link.latency_ns_max) = (faults, latency_ns_max);
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.link.lock().unwrap().is_cut = is_cut;
        self.world.tell(News::Server);
    }

    /// Ties the network to the machine with this disk.
    pub(crate) fn of_disk(&self, disk: &SimDisk) {
        self.link.lock().unwrap().disk = Some(disk.clone());
    }

    /// From now on requests with this HTTP method are lost.
    pub(crate) fn lose(&self, method: Option<&'static str>) {
        let mut link = self.link.lock().unwrap();
        link.lost_method = method;
        link.generation += 1;
    }

    fn is_lost(&self, request: &[u8]) -> bool {
        let method = self.draw(|link| link.lost_method);
        let is_of = |method: &str| request.starts_with(method.as_bytes()) || request.starts_with(OPENS_LINE);
        self.is_cut() || method.is_some_and(is_of)
    }

    /// From now on the server accepts `shown` from the machine, and nothing else; `known` is the
    /// token that the store has. `None`: tokens pass as they are.
    pub(crate) fn exchange_tokens(&self, tokens: Option<(String, String)>) {
        let mut link = self.link.lock().unwrap();
        link.tokens = tokens;
        link.generation += 1;
    }

    /// Puts the store's token in the place of the shown one, and the other way round.
    fn translate(&self, request: &mut [u8]) {
        const BEARER: &[u8] = b"Bearer ";
        let Some((shown, known)) = self.draw(|link| link.tokens.clone()) else {
            return;
        };
        let found = request.windows(BEARER.len()).position(|bytes| bytes == BEARER);
        let token = found.and_then(|at| request.get_mut(at + BEARER.len()..at + BEARER.len() + shown.len()));
        match token {
            Some(token) if token == shown.as_bytes() => token.copy_from_slice(known.as_bytes()),
            Some(token) if token == known.as_bytes() => token.copy_from_slice(shown.as_bytes()),
            _ => {}
        }
    }

    fn is_cut(&self) -> bool {
        let link = self.link.lock().unwrap();
        link.is_cut || link.disk.as_ref().is_some_and(SimDisk::is_cut)
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Link) -> T) -> T {
        draw(&mut self.link.lock().unwrap())
    }

    fn fate(&self) -> Fate {
        self.draw(|link| {
            let faults = link.faults;
            let mut drawn = link.random.below(1000);
            let fates = [
                (faults.lost, Fate::Lost),
                (faults.late, Fate::Late),
                (faults.twice, Fate::Twice),
                (faults.request_cut, Fate::RequestCut),
                (faults.answer_lost, Fate::AnswerLost),
                (faults.answer_cut, Fate::AnswerCut),
            ];
            for (often, fate) in fates {
                if drawn < often {
                    return fate;
                }
                drawn -= often;
            }
            Fate::Well
        })
    }

    /// As `fate`, for a helper. It and its task come in any order, and whether it sends one more
    /// part after one has failed is a race: so nothing is drawn, and nothing of what it sends
    /// arrives later.
    fn fate_of_part(&self, request: &[u8]) -> Fate {
        let faults = self.draw(|link| link.faults);
        let seed = first_line(request)
            .bytes()
            .fold(self.world.now_ns(), |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte));
        match SplitMix64::new(seed).below(2000) {
            drawn if drawn < faults.lost => Fate::Lost,
            drawn if drawn < faults.lost + faults.request_cut => Fate::RequestCut,
            drawn if drawn < faults.lost + faults.request_cut + faults.answer_lost => Fate::AnswerLost,
            _ => Fate::Well,
        }
    }

    fn tell(&self) {
        if !World::is_helper() {
            self.world.tell(News::Server);
        }
    }

    fn on_its_way(&self) {
        if World::is_helper() {
            return;
        }
        let time_ns = self.draw(|link| match link.latency_ns_max {
            0 => 0,
            most => link.random.below(most),
        });
        self.world.pause(Duration::from_nanos(time_ns), News::None);
    }

    /// Delivers a request later than expected, on a connection of its own.
    fn deliver_later(&self, bytes: Vec<u8>) {
        let delay_ns = self.draw(|link| 1_000_000 << link.random.below(16));
        let (world, server) = (Arc::clone(&self.world), Arc::clone(&self.server));
        let name = self.name;
        self.world.spawn("late", move || {
            world.pause(Duration::from_nanos(delay_ns), News::None);
            let Ok((life, mut stream)) = server.open() else { return };
            world.note(&format!("{name}: arrives late: {}", first_line(&bytes)));
            let _ = server.give(life, &mut stream, &bytes);
            server.finish(life, &mut stream);
            world.tell(News::Server);
        });
    }
}

/// The beginning of a request that opens a line.
const OPENS_LINE: &[u8] = b"GET /v1/line ";

/// The first line of a request. The bytes of a message on a line differ from life to life: they are
/// masked at random, and the times of the kernel are packed in it.
fn first_line(bytes: &[u8]) -> String {
    if !bytes.first().is_some_and(u8::is_ascii_uppercase) {
        return "a message on a line".to_owned();
    }
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(line).into_owned()
}

impl Network for SimNetwork {
    fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let is_refused = match World::is_helper() {
            true => self.is_cut(),
            false => self.is_cut() || self.draw(|link| link.random.below(1000) < link.faults.refused),
        };
        if is_refused {
            self.on_its_way();
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (life, stream) = self.server.open()?;
        Ok(Box::new(SimConnection {
            network: self.clone(),
            generation: self.draw(|link| link.generation),
            life,
            stream: Some(stream),
            request: Vec::new(),
            answer_left: None,
        }))
    }
}

struct SimConnection {
    network: SimNetwork,
    generation: u64,
    life: u64,
    /// `None`: the connection is broken.
    stream: Option<DuplexStream>,
    request: Vec<u8>,
    /// Number of bytes of the answer that still come.
    answer_left: Option<usize>,
}

impl fmt::Debug for SimConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimConnection").finish_non_exhaustive()
    }
}

impl SimConnection {
    fn broken(&mut self) -> io::Error {
        self.stream = None;
        io::ErrorKind::ConnectionReset.into()
    }

    /// Lets nothing come, until the waiting side gives up.
    fn silence(&mut self, patience: Duration) -> io::Error {
        self.stream = None;
        // Either the network reports it, or nothing does.
        let is_noticed = World::is_helper() || self.network.draw(|link| link.random.coin());
        if is_noticed {
            return io::ErrorKind::ConnectionReset.into();
        }
        self.network.world.pause(patience, News::None);
        io::ErrorKind::TimedOut.into()
    }

    /// Sends the written request, with the fate that is drawn.
    fn exchange(&mut self, patience: Duration) -> io::Result<()> {
        let mut request = std::mem::take(&mut self.request);
        let network = self.network.clone();
        network.translate(&mut request);
        let fate = match network.is_lost(&request) {
            true => Fate::Lost,
            false if World::is_helper() => network.fate_of_part(&request),
            false => network.fate(),
        };
        network
            .world
            .note(&format!("{}: {fate:?} {}", network.name, first_line(&request)));
        network.on_its_way();
        let arrives = match fate {
            Fate::Lost => return Err(self.silence(patience)),
            Fate::Late => {
                network.deliver_later(request);
                return Err(self.silence(patience));
            }
            Fate::RequestCut => {
                let len = u64::try_from(request.len()).unwrap();
                match World::is_helper() {
                    true => request.len() / 2,
                    false => network.draw(|link| usize::try_from(link.random.below(len)).unwrap()),
                }
            }
            _ => request.len(),
        };
        let (life, Some(stream)) = (self.life, &mut self.stream) else {
            return Err(self.broken());
        };
        if network.draw(|link| link.generation) != self.generation {
            return Err(self.broken());
        }
        if network.server.give(life, stream, &request[..arrives]).is_err() {
            return Err(self.broken());
        }
        match fate {
            Fate::RequestCut => {
                // The server notices, and reacts now. Before, it would wait, with a thread that its
                // runtime takes for work.
                self.stream = None;
                network.server.settle();
                Err(self.broken())
            }
            Fate::AnswerLost => {
                network.server.finish(life, stream);
                network.tell();
                Err(self.silence(patience))
            }
            Fate::AnswerCut => {
                self.answer_left = Some(network.draw(|link| usize::try_from(link.random.below(600)).unwrap()));
                Ok(())
            }
            Fate::Twice => {
                network.deliver_later(request);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The library measures the rest of its patience by the machine's clock, which has hardly moved
/// since.
fn virtual_patience(patience: Duration) -> Duration {
    const STEP_S: u64 = 5;
    Duration::from_secs(
        patience
            .as_secs()
            .div_euclid(STEP_S)
            .saturating_add(1)
            .saturating_mul(STEP_S),
    )
}

impl Connection for SimConnection {
    fn send(&mut self, bytes: &[u8], _patience: Duration) -> io::Result<()> {
        if self.stream.is_none() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.request.extend_from_slice(bytes);
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], patience: Duration) -> io::Result<usize> {
        let patience = virtual_patience(patience);
        let is_new = !self.request.is_empty();
        if is_new {
            self.exchange(patience)?;
        }
        let network = self.network.clone();
        let until_ns = network
            .world
            .now_ns()
            .saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX / 4));
        let len = match self.answer_left {
            Some(0) => return Err(self.broken()),
            Some(left) => left.min(buffer.len()),
            None => buffer.len(),
        };
        let mut has_waited = false;
        loop {
            let (life, Some(stream)) = (self.life, &mut self.stream) else {
                return Err(io::ErrorKind::ConnectionReset.into());
            };
            match network.server.take(life, stream, &mut buffer[..len]) {
                Err(_) => return Err(self.broken()),
                Ok(Some(came)) => {
                    if is_new {
                        network.tell();
                    }
                    // News that was waited for takes its time, too.
                    if is_new || has_waited {
                        network.on_its_way();
                    }
                    if let Some(left) = &mut self.answer_left {
                        *left -= came;
                    }
                    return Ok(came);
                }
                // A helper cannot wait, and nothing will come.
                Ok(None) if network.world.now_ns() >= until_ns || World::is_helper() => {
                    self.stream = None;
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Ok(None) if network.is_cut() => return Err(self.silence(patience)),
                Ok(None) => {
                    has_waited = true;
                    let left = until_ns.saturating_sub(network.world.now_ns());
                    network.world.pause(Duration::from_nanos(left), News::Server);
                }
            }
        }
    }

    fn is_open(&mut self) -> bool {
        self.stream.is_some() && self.network.draw(|link| link.generation) == self.generation
    }
}
