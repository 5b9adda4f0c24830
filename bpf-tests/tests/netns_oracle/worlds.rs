//! The two worlds that play sequences, the kernel's and ours. Each is made once and has a thread of
//! its own, which its stage binds to a CPU.

use std::fs;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::ours::{self, Attached};
use crate::play::{Played, Player};
use crate::sequence::Step;
use crate::stage::{NETS, Stage};

/// Datapath that translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Kernel,
    Ours,
}

/// Results of each step, by family.
pub(crate) type Record = Vec<Vec<Option<Played>>>;

/// A world's thread: it receives steps, and returns their results.
struct World {
    steps: Sender<Vec<Step>>,
    records: Receiver<Result<Record>>,
}

/// Clears the flows of a world, and plays steps in it.
pub(crate) fn record(who: Who, steps: &[Step]) -> Result<Record> {
    static KERNEL: OnceLock<Mutex<World>> = OnceLock::new();
    static OURS: OnceLock<Mutex<World>> = OnceLock::new();
    let world = match who {
        Who::Kernel => &KERNEL,
        Who::Ours => &OURS,
    };
    let world = world.get_or_init(|| Mutex::new(start(who)));
    let world = world.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = || format!("{who:?}: the world has ended");
    world.steps.send(steps.to_vec()).ok().with_context(gone)?;
    let record = world.records.recv().with_context(gone)?;
    record.with_context(|| format!("{who:?}"))
}

fn start(who: Who) -> World {
    let (steps, to_play) = channel::<Vec<Step>>();
    let (played, records) = channel();
    thread::spawn(move || {
        let mut scene = Scene::new(who);
        for steps in to_play {
            let record = match &mut scene {
                Ok(scene) => scene.play(&steps),
                Err(error) => Err(anyhow!("no stage: {error:#}")),
            };
            if played.send(record).is_err() {
                break;
            }
        }
    });
    World { steps, records }
}

/// A stage and its translation.
struct Scene {
    stage: Stage,
    /// Our programs, if they translate.
    programs: Option<Attached>,
}

impl Scene {
    fn new(who: Who) -> Result<Self> {
        let stage = Stage::new()?;
        let programs = match who {
            Who::Kernel => {
                stage.masquerade()?;
                None
            }
            Who::Ours => Some(ours::attach(&stage)?),
        };
        Ok(Self { stage, programs })
    }

    fn play(&mut self, steps: &[Step]) -> Result<Record> {
        self.forget()?;
        let play_in = |net| {
            let mut player = Player::new(&self.stage, net)?;
            let play = |step: &Step| {
                let played = player.play(step);
                played.with_context(|| format!("{}: line {}", net.name, step.line))
            };
            steps.iter().map(play).collect()
        };
        NETS.iter().map(play_in).collect()
    }

    /// Removes every flow from the translation.
    fn forget(&self) -> Result<()> {
        match &self.programs {
            Some(attached) => attached.programs.forget_flows(),
            None => self.stage.node.run(|| {
                let output = Command::new("conntrack").arg("-F").output();
                let output = output.context("conntrack")?;
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "conntrack -F: {said}");
                let count = "/proc/sys/net/netfilter/nf_conntrack_count";
                let left = fs::read_to_string(count).context(count)?;
                ensure!(left.trim() == "0", "conntrack kept {left}");
                Ok(())
            }),
        }
    }
}
