//! Candidates with an API server that loses and delays requests and answers.
//!
//! At the same time, processes are suspended, and users delete, empty and label the Lease.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// A client gives a request up after this time.
const REPLY_TIMEOUT: Duration = at(5);
const CANDIDATES: usize = 3;

/// The API server: the Lease, and the number of the last write.
#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    writes: u64,
}

impl Server {
    fn apply(&mut self, step: &Step) -> Result<Option<Lease>, Failure> {
        match (step, &self.lease) {
            (Step::Wait(_) | Step::Read, lease) => Ok(lease.clone()),
            (Step::Create(_), Some(_)) => Err(Failure::Conflict),
            (Step::Update(..), None) => Err(Failure::Absent),
            (Step::Update(version, _), Some(lease)) if lease.version != *version => {
                Err(Failure::Conflict)
            }
            (Step::Create(claim) | Step::Update(_, claim), _) => {
                self.write(claim);
                Ok(self.lease.clone())
            }
        }
    }

    fn write(&mut self, claim: &Claim) {
        self.writes += 1;
        let uid = self.lease.as_ref().map(|lease| lease.record.uid.clone());
        self.lease = Some(Lease {
            version: self.writes.to_string(),
            record: Record {
                uid: uid.unwrap_or_else(|| self.writes.to_string()),
                holder: claim.holder.clone(),
                duration: claim.duration,
                transitions: claim.transitions,
                renewed: self.writes.to_string(),
            },
        });
    }

    /// A person does something to it.
    fn meddle(&mut self, what: u8) {
        self.writes += 1;
        match (what, &mut self.lease) {
            (0, lease) => *lease = None,
            (1, Some(lease)) => {
                lease.record.holder = None;
                lease.version = self.writes.to_string();
            }
            (_, Some(lease)) => lease.version = self.writes.to_string(),
            (_, None) => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A candidate decides on its next step.
    Turn(usize),
    /// A request arrives.
    Arrives(usize),
    /// The answer to it arrives, or its time is over.
    Answered(usize),
    Meddled,
}

struct World {
    random: fastrand::Rng,
    server: Server,
    queue: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    events: u64,
    candidates: Vec<Candidate>,
    requests: Vec<Request>,
    /// True while nothing goes wrong.
    is_calm: bool,
    /// The times at which a candidate led that did not before.
    takeovers: Vec<Duration>,
}

struct Candidate {
    election: Election,
    /// The difference of its clock to that of the world.
    skew: Duration,
    is_dead: bool,
}

struct Request {
    candidate: usize,
    begun: Duration,
    step: Step,
    answer: Result<Option<Lease>, Failure>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let candidate = |number| Candidate {
            election: Election::new(format!("c{number}"), Timing::default()),
            skew: Duration::from_millis(random.u64(..1_000_000)),
            is_dead: false,
        };
        let candidates = (0..CANDIDATES).map(candidate).collect();
        let mut world = Self {
            random,
            server: Server::default(),
            queue: BinaryHeap::new(),
            events: 0,
            candidates,
            requests: Vec::new(),
            is_calm: false,
            takeovers: Vec::new(),
        };
        for number in 0..CANDIDATES {
            world.push(Duration::ZERO, Event::Turn(number));
        }
        world.push(at(20), Event::Meddled);
        world
    }

    fn push(&mut self, at: Duration, event: Event) {
        self.events += 1;
        self.queue.push(Reverse((at, self.events, event)));
    }

    /// A delay: mostly short, and now and then longer than any candidate waits.
    fn delay(&mut self) -> Duration {
        let most = match self.random.u8(..10) {
            _ if self.is_calm => 50,
            0 => 20_000,
            1 | 2 => 4_000,
            _ => 100,
        };
        Duration::from_millis(self.random.u64(..most))
    }

    fn run(&mut self, until: Duration) {
        while let Some(Reverse((now, _, _))) = self.queue.peek()
            && *now < until
            && let Some(Reverse((now, _, event))) = self.queue.pop()
        {
            self.handle(now, event);
        }
    }

    fn handle(&mut self, now: Duration, event: Event) {
        match event {
            Event::Turn(number) if self.candidates[number].is_dead => {}
            Event::Turn(number) => self.turn(number, now),
            Event::Arrives(id) => {
                let Request { begun, step, .. } = &self.requests[id];
                let late = *begun + REPLY_TIMEOUT;
                let answer = self.server.apply(step);
                let answered = now + self.delay();
                // A late request still takes effect, and its answer is lost.
                if answered < late {
                    self.requests[id].answer = answer;
                    self.push(answered, Event::Answered(id));
                } else if now < late {
                    self.push(late, Event::Answered(id));
                }
            }
            Event::Answered(id) => self.answered(id, now),
            Event::Meddled => {
                if !self.is_calm {
                    let what = self.random.u8(..4);
                    self.server.meddle(what);
                    let wait = at(self.random.u64(5..60));
                    self.push(now + wait, Event::Meddled);
                }
            }
        }
    }

    fn turn(&mut self, number: usize, now: Duration) {
        let resigns = !self.is_calm && self.random.u8(..50) == 0;
        let candidate = &mut self.candidates[number];
        let mut step = candidate.election.next(now + candidate.skew);
        if resigns && let Some(release) = candidate.election.release() {
            step = release;
        }
        if let Step::Wait(due) = step {
            // A process may stand still for as long as it pleases.
            let due = due.saturating_sub(candidate.skew);
            let late = self.delay() * 2;
            return self.push(due + late, Event::Turn(number));
        }
        let id = self.requests.len();
        self.requests.push(Request {
            candidate: number,
            begun: now,
            step,
            answer: Err(Failure::Unknown),
        });
        let arrives = now + self.delay();
        self.push(arrives, Event::Arrives(id));
        if arrives >= now + REPLY_TIMEOUT {
            self.push(now + REPLY_TIMEOUT, Event::Answered(id));
        }
    }

    fn answered(&mut self, id: usize, now: Duration) {
        let request = &mut self.requests[id];
        let answer = std::mem::replace(&mut request.answer, Err(Failure::Unknown));
        let (number, begun) = (request.candidate, request.begun);
        let Candidate { election, skew, .. } = &mut self.candidates[number];
        let led = election.term().map(|term| term.since);
        match request.step {
            Step::Wait(_) | Step::Read => election.read(now + *skew, answer),
            Step::Create(_) | Step::Update(..) => {
                let answer = answer.and_then(|lease| lease.ok_or(Failure::Unknown));
                election.wrote(begun + *skew, now + *skew, answer);
            }
        }
        let leads = election.term().map(|term| term.since);
        if leads.is_some() && leads != led {
            self.takeovers.push(now);
        }
        let leaders = self.leaders(now);
        assert!(leaders.len() <= 1, "at {now:?}: {leaders:?} lead");
        self.push(now, Event::Turn(number));
    }

    fn leaders(&self, now: Duration) -> Vec<usize> {
        let leads = |number: &usize| {
            let candidate = &self.candidates[*number];
            let own = now + candidate.skew;
            candidate
                .election
                .term()
                .is_some_and(|term| own < term.until)
        };
        (0..CANDIDATES).filter(leads).collect()
    }
}

#[test]
fn there_is_never_more_than_one_leader_and_in_the_end_there_is_one() {
    let mut takeovers = 0;
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.run(at(1200));
        world.is_calm = true;
        world.run(at(1300));
        takeovers += world.takeovers.len();
        let leaders = world.leaders(at(1300));
        assert_eq!(leaders.len(), 1, "seed {seed}");
        // The leader dies without a word.
        world.candidates[leaders[0]].is_dead = true;
        let before = world.takeovers.len();
        world.run(at(1340));
        let taken = world.takeovers.get(before).copied();
        assert!(
            taken.is_some_and(|taken| taken < at(1325)),
            "seed {seed}: {taken:?}"
        );
    }
    assert!(takeovers > 1000, "the office changes hands: {takeovers}");
}
