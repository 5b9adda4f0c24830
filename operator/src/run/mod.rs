//! The running operator: objects are followed, the fleet decides, works are carried out.

mod actor;
mod carry;
mod change;
mod clock;
mod follow;
mod health;
mod pools;
mod settings;
mod standing;
mod taint;

use std::env;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use apiserver::client::{Access, Connection};
use apiserver::events::{Events, Reporter};
use apiserver::lease::election::Timing;
use apiserver::lease::{self, Candidate};
use apiserver::objects;
use ec2::Ec2;
use fleet::{Fleet, Standing};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use self::actor::Actor;
pub(crate) use self::actor::Inbox;
use self::carry::Carrier;
use self::clock::moment;
use self::follow::Follower;
use self::health::HANDS_OVER;
pub(crate) use self::health::{Beat, Health};
use crate::config::Config;
use crate::{holder, http};

/// The time limit of a write to the API server.
const WRITE: Duration = Duration::from_secs(5);
/// A main loop that has not come round for so long has stalled.
const STALLED: Duration = Duration::from_secs(30);
/// A search for other operators that has not come round for so long has stalled. It reads four
/// objects, each within the time limit of a read.
const SEARCHES: Duration = Duration::from_mins(2);
/// The lifetime of a watch.
const WATCH: Duration = Duration::from_mins(4);

/// Runs the operator until `stop`. Works in flight end then, and the Lease goes to the next one.
///
/// # Errors
/// When the configuration lacks the cluster's name, the API server's credentials cannot be used, an
/// address to listen on is taken, or a task ends.
pub async fn run(config: Config, ec2: Arc<dyn Ec2>, stop: impl Future<Output = ()>) -> Result<()> {
    let cluster = config.cluster()?.as_str().to_owned();
    let connection = connect(&config).await?;
    let fleet = Fleet::new(settings::of(&config, &cluster), moment()?)?;
    let (inbox, messages) = Inbox::new();
    let (standing, is_standing) = watch::channel(Standing::default());
    let health = Health::default();
    let mut tasks = JoinSet::new();
    let serving = http::State {
        inbox: inbox.clone(),
        health: health.clone(),
        ec2: Arc::clone(&ec2),
        standing: is_standing.clone(),
    };
    http::serve(&config, serving, &mut tasks).await?;
    // A dry run leaves the Lease to an operator that works.
    let candidacy = (!config.dry_run).then(|| Candidacy::begin(&config, &connection));
    let (kept, nobody) = watch::channel(lease::Standing::default());
    let lease = candidacy.as_ref().map_or(nobody, |it| it.standing.clone());
    let searches = health.worker("the search for other operators", SEARCHES);
    let decider = standing::Task {
        mode: standing::Mode::of(&config),
        lease,
        other: holder::follow(connection.client.clone(), searches),
        inbox: inbox.clone(),
        beat: health.worker("the task of the standing", HANDS_OVER),
        shared: standing,
    };
    tasks.spawn(decider.run());
    let follower = Follower {
        connection: connection.clone(),
        inbox,
        standing: is_standing,
        health: health.clone(),
    };
    follower.start(&config, &mut tasks);
    let actor = Actor {
        fleet,
        carrier: carrier(ec2, &connection),
        messages,
        beat: health.worker("the main loop", STALLED),
        health,
    };
    let broken = first_end(&mut tasks);
    let mut failure = Ok(());
    let stop = async {
        tokio::select! {
            () = stop => {}
            broken = broken => failure = broken,
        }
    };
    let ended = actor.run(stop).await;
    drop(kept);
    let released = match candidacy {
        Some(candidacy) => candidacy.end().await,
        None => Ok(()),
    };
    failure.and(ended).and(released)
}

/// Carries works out by EC2 and by the API server.
fn carrier(ec2: Arc<dyn Ec2>, connection: &Connection) -> Carrier {
    let reporter = Reporter {
        component: "towpath-operator",
        instance: name(),
    };
    Carrier {
        ec2,
        nodes: objects::cilium_nodes(&connection.client),
        events: Events::start(&connection.client, reporter),
    }
}

/// Waits for the first task that ends, which is a failure: none is to end before the operator.
async fn first_end(tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    match tasks.join_next().await {
        Some(Ok(Ok(()))) => Err(anyhow!("a task ended")),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(error)) => Err(error.into()),
        None => pending().await,
    }
}

/// The candidacy for the Lease.
struct Candidacy {
    standing: watch::Receiver<lease::Standing>,
    task: JoinHandle<nix::Result<()>>,
    /// Dropped at the end of the candidacy.
    release: oneshot::Sender<()>,
}

impl Candidacy {
    fn begin(config: &Config, connection: &Connection) -> Self {
        let section = &config.kubernetes.lease;
        let leases = objects::leases(&connection.client, &section.namespace);
        let identity = lease::identity(&name());
        let (candidate, standing) =
            Candidate::new(leases, &section.name, identity, Timing::default());
        let (release, released) = oneshot::channel::<()>();
        let task = tokio::spawn(candidate.run(async {
            let _dropped = released.await;
        }));
        Self {
            standing,
            task,
            release,
        }
    }

    /// Releases the Lease. No change may be in flight any more.
    async fn end(self) -> Result<()> {
        drop(self.release);
        let ended = self.task.await.context("release the Lease")?;
        ended.context("read the clock CLOCK_BOOTTIME")
    }
}

async fn connect(config: &Config) -> Result<Connection> {
    let access = match &config.kubernetes.kubeconfig {
        Some(path) => {
            let access = Access::from_kubeconfig(path).await;
            access.with_context(|| format!("kubernetes.kubeconfig: {}", path.display()))?
        }
        None => Access::from_service_account()
            .context("kubernetes.kubeconfig is null, and there is no pod's service account")?,
    };
    access.connect(WATCH)
}

/// This process, for people: the pod's name, or the host's.
fn name() -> String {
    let pod = env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    pod.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok())
        .unwrap_or_else(|| "towpath-operator".to_owned())
}
