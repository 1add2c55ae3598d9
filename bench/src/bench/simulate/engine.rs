//! A discrete-event simulation of CPUs that work in caches of their own and sometimes need a lock:
//! the next event of each CPU is in a queue, and time jumps from one event to the next.
//!
//! ```text
//!   work --(a call that its cache cannot serve)--> Tries --(lock is open)--> Holds --> work
//!                                                  |   ^                       |       ^
//!                                            taken |   '-- opens --.           v       |
//!                                                  v               |         Writes ---'
//!                       BacksOff --(over, still taken)--> LooksOn -'  (if there is a counter)
//! ```
//!
//! CPUs wait as in `framewright`'s `sync/spin.rs`: a CPU that finds the lock taken waits 1, 2, 4 ..
//! 256 turns without a look, then looks on until the lock opens and tries again. When it opens, any
//! one of the CPUs that look on gets it, and the others wait longer. A lock and the data that it
//! guards are in the caches of the CPU that had it last; any other CPU pays for the transfer.
//!
//! Times are in nanoseconds. Nothing is measured here.

use crate::bench::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most turns of one wait, as in `sync/spin.rs`.
const BACKOFF_LIMIT: u32 = 256;

/// What a CPU does from one use of the lock to the next, and with the lock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Turn {
    /// The number of calls: those that the CPU's cache serves, and the one that it cannot serve.
    pub calls: u32,
    /// How long the cached calls take.
    pub think_ns: f64,
    /// How long the lock is held if the data that it guards is in the CPU's own caches.
    pub hold_ns: f64,
    /// Whether frames go back to the zone, where they may belong to another part.
    pub is_drain: bool,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    pub cpus: usize,
    /// The number of parts, each with a lock. With zero parts, CPUs share nothing.
    pub parts: usize,
    /// What each CPU does, over and over, each CPU beginning at another place.
    pub turns: &'a [Turn],
    /// The time of one turn of a busy wait.
    pub relax_ns: f64,
    /// The time for moving a cache line from one CPU to another.
    pub line_ns: f64,
    /// How much longer a hold takes if another CPU had the lock before.
    pub transfer_ns: f64,
    /// How many of 1000 drains go to another part than the CPU's own.
    pub foreign_permille: usize,
    /// Whether each hold ends with a write to a counter that all parts share.
    pub common_counter: bool,
}

/// The result of a simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Calls in a nanosecond, of all CPUs together.
    pub calls_per_ns: f64,
    /// The share of the CPUs' time that was spent waiting.
    pub waiting: f64,
    /// The share of the time in which the busiest lock was held.
    pub busiest: f64,
}

/// What a CPU is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It works, or saw the lock open, and tries to take the lock next.
    Tries,
    /// It waits without a look.
    BacksOff,
    /// It looks at the lock until the lock opens.
    LooksOn,
    /// It holds the lock.
    Holds,
    /// It still holds the lock, and its write to the common counter is under way or waits for those
    /// of others.
    Writes,
}

struct Cpu {
    state: State,
    next_turn: usize,
    /// The part whose lock the CPU wants or holds.
    part: usize,
    /// When the CPU first wanted the lock.
    since_ns: f64,
    /// The turns of the CPU's next wait.
    backoff: u32,
    calls: u64,
    waited_ns: f64,
}

struct Part {
    holder: Option<usize>,
    last: usize,
    looking_on: Vec<usize>,
    held_ns: f64,
}

/// A time as a key: times are not negative, so their bits sort as the times do.
fn key(ns: f64) -> u64 {
    ns.max(0.0).to_bits()
}

struct Simulation<'a> {
    model: Model<'a>,
    random: Random,
    events: BinaryHeap<Reverse<(u64, usize)>>,
    cpus: Vec<Cpu>,
    parts: Vec<Part>,
    /// When the common counter is free again, and which CPU wrote to it last.
    counter_free_ns: f64,
    counter_last: usize,
    /// Nothing is counted before this time, nor after `until_ns`.
    from_ns: f64,
    until_ns: f64,
}

/// Simulates this many nanoseconds, the first quarter of which is not counted.
pub fn run(model: Model<'_>, ns: f64) -> Outcome {
    if model.turns.is_empty() || model.cpus == 0 {
        return Outcome { calls_per_ns: 0.0, waiting: 0.0, busiest: 0.0 };
    }
    let mut random = Random::new(1);
    let cpu = |_| Cpu {
        state: State::Tries,
        next_turn: random.below(model.turns.len()),
        part: 0,
        since_ns: 0.0,
        backoff: 1,
        calls: 0,
        waited_ns: 0.0,
    };
    let cpus = (0..model.cpus).map(cpu).collect();
    let part = |_| Part { holder: None, last: usize::MAX, looking_on: Vec::new(), held_ns: 0.0 };
    let mut simulation = Simulation {
        model,
        random,
        events: BinaryHeap::new(),
        cpus,
        parts: (0..model.parts.max(1)).map(part).collect(),
        counter_free_ns: 0.0,
        counter_last: usize::MAX,
        from_ns: ns / 4.0,
        until_ns: ns,
    };
    simulation.run()
}

impl Simulation<'_> {
    fn run(&mut self) -> Outcome {
        let ns = self.until_ns;
        for cpu in 0..self.cpus.len() {
            self.work(cpu, 0.0);
        }
        while let Some(Reverse((time, cpu))) = self.events.pop() {
            let now = f64::from_bits(time);
            if now > ns {
                break;
            }
            match self.cpus[cpu].state {
                State::Holds if self.model.common_counter => self.write(cpu, now),
                State::Holds | State::Writes => self.release(cpu, now),
                _ => self.look(cpu, now),
            }
        }
        for cpu in &mut self.cpus {
            if !matches!(cpu.state, State::Holds | State::Writes) {
                cpu.waited_ns += ns - cpu.since_ns.clamp(self.from_ns, ns);
            }
        }
        let counted_ns = ns - self.from_ns;
        let calls: u64 = self.cpus.iter().map(|cpu| cpu.calls).sum();
        let waited_ns: f64 = self.cpus.iter().map(|cpu| cpu.waited_ns).sum();
        let held_ns = self.parts.iter().map(|part| part.held_ns).fold(0.0, f64::max);
        Outcome {
            calls_per_ns: calls as f64 / counted_ns,
            waiting: waited_ns / counted_ns / self.cpus.len() as f64,
            busiest: held_ns / counted_ns,
        }
    }

    fn at(&mut self, ns: f64, cpu: usize) {
        self.events.push(Reverse((key(ns), cpu)));
    }

    fn turn(&self, cpu: usize) -> Turn {
        self.model.turns[self.cpus[cpu].next_turn]
    }

    /// Serves calls from the cache until one needs a lock: that of the home part, which a CPU
    /// shares with its neighbours.
    fn work(&mut self, cpu: usize, now: f64) {
        let (turn, parts) = (self.turn(cpu), self.parts.len());
        let home = cpu * parts / self.cpus.len();
        let goes_away =
            turn.is_drain && parts > 1 && self.random.below(1000) < self.model.foreign_permille;
        let other = if goes_away { 1 + self.random.below(parts - 1) } else { 0 };
        let since_ns = now + turn.think_ns;
        let part = (home + other) % parts;
        let this = &mut self.cpus[cpu];
        *this = Cpu { state: State::Tries, part, since_ns, backoff: 1, ..*this };
        self.at(since_ns, cpu);
    }

    /// Takes the lock if it is open.
    fn look(&mut self, cpu: usize, now: f64) {
        let this = &mut self.cpus[cpu];
        let part = &mut self.parts[this.part];
        if self.model.parts == 0 || part.holder.is_none() {
            return self.hold(cpu, now);
        }
        if this.state == State::BacksOff {
            this.state = State::LooksOn;
            part.looking_on.push(cpu);
            return;
        }
        let wait_ns = f64::from(this.backoff) * self.model.relax_ns;
        this.backoff = (this.backoff * 2).min(BACKOFF_LIMIT);
        this.state = State::BacksOff;
        self.at(now + wait_ns, cpu);
    }

    fn hold(&mut self, cpu: usize, now: f64) {
        let (model, turn) = (self.model, self.turn(cpu));
        let this = &mut self.cpus[cpu];
        let mut end = now + turn.hold_ns;
        if model.parts != 0 {
            let part = &mut self.parts[this.part];
            if part.last != cpu && part.last != usize::MAX {
                end += model.transfer_ns;
            }
            (part.holder, part.last) = (Some(cpu), cpu);
        }
        this.state = State::Holds;
        let since_ns = this.since_ns;
        self.cpus[cpu].waited_ns += self.counted(since_ns, now);
        self.held(cpu, now, end);
    }

    /// Writes to the common counter when what the lock guards has been done: writes queue in the
    /// order in which they are made, not in that in which the holds began.
    fn write(&mut self, cpu: usize, now: f64) {
        let moves = if self.counter_last == cpu { 0.0 } else { self.model.line_ns };
        let end = now.max(self.counter_free_ns) + moves;
        (self.counter_free_ns, self.counter_last) = (end, cpu);
        self.cpus[cpu].state = State::Writes;
        self.held(cpu, now, end);
    }

    /// The CPU holds its lock until `end`.
    fn held(&mut self, cpu: usize, now: f64, end: f64) {
        let held_ns = self.counted(now, end);
        self.parts[self.cpus[cpu].part].held_ns += held_ns;
        self.at(end, cpu);
    }

    /// How much of a time is counted.
    fn counted(&self, from: f64, to: f64) -> f64 {
        (to.min(self.until_ns) - from.max(self.from_ns)).max(0.0)
    }

    fn release(&mut self, cpu: usize, now: f64) {
        let calls = u64::from(self.turn(cpu).calls);
        let this = &mut self.cpus[cpu];
        this.next_turn = (this.next_turn + 1) % self.model.turns.len();
        if now > self.from_ns {
            this.calls += calls;
        }
        let part = &mut self.parts[this.part];
        part.holder = None;
        let mut looking_on = std::mem::take(&mut part.looking_on);
        self.work(cpu, now);
        // The waiting CPUs see the open lock once the cache line reaches them, in random order. The
        // first takes it, and the others find it taken again.
        self.random.shuffle(&mut looking_on);
        let mut seen_ns = now + self.model.line_ns;
        for other in looking_on {
            self.cpus[other].state = State::Tries;
            self.at(seen_ns, other);
            seen_ns = f64::from_bits(key(seen_ns) + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: f64 = 900.0;
    const HOLD: f64 = 100.0;
    const LONG: f64 = 4e5;

    fn turn(think_ns: f64, hold_ns: f64) -> Turn {
        Turn { calls: 1, think_ns, hold_ns, is_drain: false }
    }

    fn model(turns: &[Turn], cpus: usize, parts: usize) -> Model<'_> {
        Model {
            cpus,
            parts,
            turns,
            relax_ns: 0.0,
            line_ns: 0.0,
            transfer_ns: 0.0,
            foreign_permille: 0,
            common_counter: false,
        }
    }

    fn is_about(measured: f64, expected: f64, share: f64) {
        assert!((measured / expected - 1.0).abs() < share, "{measured} for {expected}");
    }

    #[test]
    fn one_lock_is_saturated_where_it_must_be() {
        // D/D/1 with N customers: min(N / (think + hold), 1 / hold).
        let turns = [turn(THINK, HOLD)];
        for cpus in [1, 2, 5, 9, 10, 11, 20, 256] {
            let outcome = run(model(&turns, cpus, 1), LONG);
            let expected = (cpus as f64 / (THINK + HOLD)).min(1.0 / HOLD);
            is_about(outcome.calls_per_ns, expected, 0.005);
            is_about(outcome.busiest, (cpus as f64 / 10.0).min(1.0), 0.001);
            // The rest of the CPUs' time is spent waiting.
            let waiting = 1.0 - expected * (THINK + HOLD) / cpus as f64;
            assert!((outcome.waiting - waiting).abs() < 0.01, "{cpus}: {outcome:?}");
        }
    }

    #[test]
    fn parts_and_nothing_shared_are_so_many_locks() {
        let turns = [turn(THINK, HOLD)];
        for (cpus, parts, expected) in
            [(64, 4, 4.0 / HOLD), (64, 8, 0.064), (64, 0, 0.064), (256, 0, 0.256)]
        {
            is_about(run(model(&turns, cpus, parts), LONG).calls_per_ns, expected, 0.001);
        }
    }

    #[test]
    fn random_times_wait_as_queueing_theory_says() {
        // M/M/1 with N customers (the machine repairman): the lock is held for 1 - p0 of the time.
        let mut random = Random::new(7);
        let mut drawn = |mean: f64| {
            let share = (random.below(1 << 30) + 1) as f64 / f64::from(1 << 30);
            -share.ln() * mean
        };
        let turns: Vec<Turn> = (0..1 << 16).map(|_| turn(drawn(THINK), drawn(HOLD))).collect();
        for cpus in [2, 8, 12] {
            let mut term = 1.0;
            let terms = (0..cpus).map(|busy| {
                term *= (cpus - busy) as f64 * HOLD / THINK;
                term
            });
            let busy = 1.0 - 1.0 / (1.0 + terms.sum::<f64>());
            let outcome = run(model(&turns, cpus, 1), 2e7);
            is_about(outcome.calls_per_ns, busy / HOLD, 0.02);
        }
    }

    #[test]
    fn changing_hands_costs_a_line_and_what_it_guards() {
        let turns = [turn(0.0, HOLD)];
        let costly = Model { line_ns: 30.0, transfer_ns: 70.0, ..model(&turns, 1, 1) };
        is_about(run(costly, LONG).calls_per_ns, 1.0 / HOLD, 0.001);
        // No CPU gets the lock twice in a row, as the other is looking on when it is released.
        let turns = [turn(40.0, HOLD)];
        let two = Model { cpus: 2, turns: &turns, ..costly };
        is_about(run(two, LONG).calls_per_ns, 1.0 / 200.0, 0.001);
    }

    #[test]
    fn who_backs_off_leaves_the_lock_to_others() {
        let turns = [turn(30.0, HOLD)];
        let costly = Model { line_ns: 20.0, transfer_ns: HOLD, ..model(&turns, 8, 1) };
        let [patient, hasty] = [40.0, 0.0].map(|relax_ns| Model { relax_ns, ..costly });
        let [patient, hasty] = [patient, hasty].map(|model| run(model, LONG).calls_per_ns);
        assert!(hasty < patient && patient <= 1.0 / HOLD, "{hasty} {patient}");
    }

    #[test]
    fn a_common_counter_is_one_more_lock() {
        let turns = [turn(THINK, HOLD)];
        let model = Model { line_ns: 50.0, common_counter: true, ..model(&turns, 256, 64) };
        let limit = 1.0 / 50.0;
        is_about(run(model, LONG).calls_per_ns, limit, 0.02);
    }

    #[test]
    fn a_counter_is_written_when_a_hold_ends() {
        // A short hold may begin during a long one and end before it: nobody waits for a counter
        // that is free at that time, and one that moves at no cost is always free.
        let turns = [turn(THINK, HOLD), turn(THINK, 9.0 * HOLD)];
        let free = model(&turns, 64, 64);
        let counted = Model { common_counter: true, ..free };
        let [free, counted] = [free, counted].map(|model| run(model, LONG));
        is_about(counted.calls_per_ns, free.calls_per_ns, 0.001);
        is_about(counted.busiest, free.busiest, 0.001);
    }

    #[test]
    fn drains_may_go_elsewhere() {
        let turns = [Turn { is_drain: true, ..turn(THINK, HOLD) }];
        let away = Model { foreign_permille: 1000, transfer_ns: 500.0, ..model(&turns, 8, 8) };
        let home = Model { foreign_permille: 0, ..away };
        let [away, home] = [away, home].map(|model| run(model, LONG).calls_per_ns);
        is_about(home, 8.0 / (THINK + HOLD), 0.001);
        assert!(away < home * 0.75, "{away} {home}");
    }

    #[test]
    fn nothing_to_do_is_nothing_done() {
        assert_eq!(run(model(&[], 4, 1), LONG).calls_per_ns, 0.0);
        assert_eq!(run(model(&[turn(1.0, 1.0)], 0, 1), LONG).calls_per_ns, 0.0);
    }
}
