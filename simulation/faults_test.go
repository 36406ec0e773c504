package simulation

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/simulation/scenario"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

var faultSeeds = flag.Int("fault-seeds", 0, "how many seeds a seeded fault may survive; 0: what each is known to need, with a margin")

// seeded is one fault that a test puts into the rules or the shell.
type seeded struct {
	name, invariant string
	needs           int // the seed that showed it when it was last measured; 0: too rare for every run
	taste           scenario.Taste
	put             func(*hooks)
}

// apply is a fault of the rules.
func apply(f applies) func(*hooks) { return func(h *hooks) { h.apply = f } }

// seededFaults are what the checkers were seen to catch: at least one for each.
func seededFaults() []seeded {
	return []seeded{
		{"two epochs may be current", "one-current-epoch", 1, scenario.Taste{}, apply(forgetsLease)},
		{"a stale completion is taken for the current one", "stale-never-commits", 2, loners, apply(takesStale)},
		{"the epoch of a checkpoint is not checked", "stale-never-commits", 1, lonersSaving, apply(before(func(s *site.State, b *site.Checkpoint) *site.State {
			b.Commit.Epoch = currentEpoch(s, b.Authority)
			return underCurrent(s, &b.Authority)
		}))},
		{"the epoch of a phase is not checked", "stale-never-commits", 30, scenario.Taste{}, apply(before(func(s *site.State, b *site.Phase) *site.State { return underCurrent(s, &b.Authority) }))},
		{"a completion is accepted under a lease that ended", "stale-never-commits", 14, revoked, apply(before(acceptsEnded))},
		{"the term of a completion is not checked", "stale-never-commits", 14, revoked, apply(before(ignoresTerm))},
		{"a late result overwrites the terminal status", "terminal-once", 3, loners, apply(writesTwice)},
		{"a completion's message is forgotten", "terminal-once", 24, scenario.Taste{}, apply(before(forgetsMessage))},
		{"the daemon forgets which records it has", "exactly-once-upstream", 8, scenario.Taste{}, func(h *hooks) { h.forgetful = true }},
		{"the daemon acknowledges before its disk has it", "exactly-once-upstream", 10, onlyDaemon, func(h *hooks) { h.hasty = true }},
		{"one end is queued twice for the daemon", "exactly-once-upstream", 1, scenario.Taste{}, apply(after(twoOutcomes))},
		{"the outbox is trimmed beyond the acknowledgement", "exactly-once-upstream", 51, scenario.Taste{}, apply(before(trimsTooFar))},
		{"a new leader counts the silence from zero", "within-allowance", 1, onlyUplink, func(h *hooks) { h.base = fromZero }},
		{"a new leader counts on from the committed figure alone", "within-allowance", 1, onlyUplink, func(h *hooks) { h.base = asCommitted }},
		{"a holder does not listen to what the grant leaves", "within-allowance", 1, onlyUplink, func(h *hooks) { h.boundless = true }},
		{"a holder counts from the receipt", "holder-stops-first", 19, silentNodes, func(h *hooks) { h.counted = fromReceipt }},
		{"renewals are answered without a majority", "holder-stops-first", 89, mutedLeaders, func(h *hooks) { h.unconfirmed = true }},
		{"a deposed leader's expiry counts", "holder-stops-first", 19, onlyPause, apply(anyTerm)},
		{"a granter does not wait until it is certain", "holder-stops-first", 5, scenario.Taste{}, apply(alwaysCertain)},
		{"the drift of clocks is not reckoned with", "holder-stops-first", 48, longSilence, func(h *hooks) { h.config = noDrift }},
		{"a forced stop takes longer than it may", "holder-stops-first", 1, silentNodes, func(h *hooks) { h.slowKill = true }},
		{"a workload outlives its agent", "holder-stops-first", 1, onlyKill, func(h *hooks) { h.orphans = true }},
		{"a revocation frees protected work at once", "holder-stops-first", 1, takenAway, apply(after(freesAtOnce))},
		{"a copied machine ends at once", "holder-stops-first", 1, copied, apply(before(endsAtOnce))},
		{"a holder says that it stopped before it did", "holder-stops-first", 1, takenAway, func(h *hooks) { h.tellsEarly = true }},
		{"the next epoch is counted by the old terms", "holder-stops-first", 9, shortened, func(h *hooks) { h.oldTerms = true }},
		{"a contact renews a hard end", "within-allowance", 1, hardEnds, func(h *hooks) { h.readsOnce = true }},
		{"what follows a refused command in its entry is not kept", "nothing-lost", 74, crowded, func(h *hooks) { h.skipsRest = true }},
		{"a command is written before the log's format allows it", "same-state", 2, mixed, func(h *hooks) { h.writesEarly = true }},
		{"a program goes on that the log's format has left behind", "same-state", 1, mixed, func(h *hooks) { h.readsOn = true }},
		{"a forced recovery keeps the incarnation", "one-current-epoch", 1, recovering, apply(after(keepsIncarnation))},
		{"a recovered site holds for free what its old state calls queued", "holder-stops-first", 143, queuing, apply(after(trustsQueue))},
		{"a recovered site takes a new session for the end of the last lease", "holder-stops-first", 204, recoveringSoon, apply(before(trustsSession))},
		{"a second recovery keeps the incarnation of the first", "one-current-epoch", 78, recoveringTwice, apply(after(keepsSecond))},
		{"a second recovery has the lineage of the first", "nothing-lost", 7, recoveringTwice, func(h *hooks) { h.sameLineage = true }},
		{"a recovery leaves out what its node does not know to be committed", "nothing-lost", 24, recoveringCrowded, func(h *hooks) { h.dropsTail = true }},
		{"a recovery does not end a lease, and the site forgets it", "one-current-epoch", 11, recoveringFree, apply(leavesCurrent)},
		{"a restored site counts on from its backup's incarnation", "one-current-epoch", 36, restored, func(h *hooks) { h.fromBackup = true }},
		{"a restored site does not end what its backup has granted", "holder-stops-first", 1, restored, apply(after(believesBackup))},
		{"a restored site resumes from what was committed after its backup", "committed-checkpoint-only", 5, restoredSaving, func(h *hooks) { h.everSaved = true }},
		{"a device's host admits any token", "device-single-holder", 2, withDevice, func(h *hooks) { h.openGate = true }},
		{"a device is free before it was reset", "device-single-holder", 1, withDevice, apply(freeAtOnce)},
		{"a rule asks something outside the log", "same-state", 10, scenario.Taste{}, func(h *hooks) { h.apply = impure() }},
		{"a disk loses what was synced", "nothing-lost", 2, scenario.Taste{}, func(h *hooks) { h.amnesia = 12 }},
		{"an entry is acknowledged before it is on disk", "nothing-lost", 12, onlyPower, func(h *hooks) { h.ackFirst = true }},
		{"an epoch resumes from leftovers", "committed-checkpoint-only", 1, scenario.Taste{}, apply(resumesLeftovers)},
		{"an epoch restores a state that was not committed", "committed-checkpoint-only", 10, scenario.Taste{}, func(h *hooks) { h.bestGuess = true }},
		{"a quarantined checkpoint is resumed from", "committed-checkpoint-only", 14, scenario.Taste{}, apply(after(resumesQuarantined))},
		{"a collection takes what is pinned", "pinned-never-gone", 1, scenario.Taste{}, func(h *hooks) { h.ignorePins = true }},
		{"a copy is counted that was never made", "pinned-never-gone", 1, scenario.Taste{}, func(h *hooks) { h.noCopies = true }},
		{"pins of jobs that go on are let go", "pinned-never-gone", 1, scenario.Taste{}, func(h *hooks) { h.eagerUnpin = true }},
		{"a copy is acknowledged before it is on disk", "pinned-never-gone", 1, scenario.Taste{}, func(h *hooks) { h.unsafeStore = true }},
		{"that a job asks for no replacement is not stored with its lease", "holder-stops-first", 10, ownWork, apply(after(forgetsNoReplace))},
		{"a job that is to wait is queued when it is given back", "held-waits", 12, scenario.Taste{}, apply(after(holdForgotten))},
		{"a stale ingest moves its names", "named-whole", 58, ownWork, apply(after(namesStale))},
		{"one of an ingest's names stays behind", "named-whole", 1, ownWork, apply(after(namesHalf))},
		{"a restored site takes a device that was used since for clean", "device-single-holder", 147, restoredDevices, apply(after(forgetsHolders))},
		{"work that was asked back while it ran is taken for clean", "never-twice", 4, askedBack, apply(before(func(s *site.State, b *site.Release) *site.State { b.Clean = true; return s }))},
		{"nobody looks for what a lost epoch left open", "effect-once", 1, publishing, func(h *hooks) { h.looksNot = true }},
		{"the ledger of a lost epoch is forgotten", "effect-once", 1, publishing, apply(before(forgetsLedger))},
		{"an intent does not ask what is done already", "effect-once", 1, publishing, apply(before(beginsAnew))},
		{"an acknowledgement does not trim the outbox", "progress", 1, scenario.Taste{}, apply(keepsOutbox)},
		{"a silence never ends a lease", "progress", 8, scenario.Taste{}, apply(neverExpires)},
		{"a device is never reset", "progress", 1, scenario.Taste{}, func(h *hooks) { h.neverResets = true }},
		{"a contact does not wake what waited for it", "progress", 1, onlyUplink, apply(after(neverGoesOn))},
		{"a removed node is switched off while its vote counts", "progress", 0, scenario.Taste{}, func(h *hooks) { h.offAtOnce = true }},
		{"a removed node's devices stay in the pool", "progress", 19, scenario.Taste{}, apply(after(staysMember))},
	}
}

// TestFaults puts one fault after another into the rules or the shell, and sees the
// invariant's checker fail. A checker that was never seen to fail is not trusted.
func TestFaults(t *testing.T) {
	for _, f := range seededFaults() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			most := *faultSeeds
			if most == 0 && f.needs == 0 {
				t.Skip("rare: make sim-long looks for it, this run has no time for so many sites")
			}
			if most == 0 {
				most = 3*f.needs + 60
			}
			others := map[string]int{}
			for n := 1; n <= most; n++ {
				r := f.play(scenario.Draw(uint64(n), f.taste))
				if r.Broken == nil {
					continue
				}
				if r.Broken.Invariant == f.invariant {
					fmt.Printf("%-28s %5d  %s\n", f.invariant, n, f.name)
					t.Logf("seen after %d sites: %s (seen otherwise before: %v)", n, r.Broken.Detail, others)
					return
				}
				others[r.Broken.Invariant]++
			}
			t.Errorf("%s did not see it in %d sites; others: %v", f.invariant, most, others)
		})
	}
}

func (f seeded) play(sc scenario.Scenario) Result {
	h := honest()
	f.put(&h)
	return play(sc, Options{Quiet: true}, h)
}

// TestEveryCheckerIsSeenToFail: each of the twelve invariants of the design, that of names and that of work
// which is never retried, has a fault
// that trips it, and the list has at least 25.
func TestEveryCheckerIsSeenToFail(t *testing.T) {
	seen := map[string]int{}
	for _, f := range seededFaults() {
		seen[f.invariant]++
	}
	all := []string{
		"one-current-epoch", "stale-never-commits", "holder-stops-first", "terminal-once", "nothing-lost", "exactly-once-upstream", "within-allowance",
		"committed-checkpoint-only", "device-single-holder", "pinned-never-gone", "same-state", "progress", "named-whole", "never-twice", "held-waits", "effect-once",
	}
	for _, name := range all {
		if seen[name] == 0 {
			t.Errorf("no fault trips %s", name)
		}
	}
	if len(seen) != len(all) || len(seededFaults()) < 25 {
		t.Errorf("%d faults trip %d invariants, 25 and %d are due", len(seededFaults()), len(seen), len(all))
	}
}

// Tastes: the company that a fault needs.
var (
	onlyPause  = scenario.Taste{Kinds: []string{"pause"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Adjust: protects}
	onlyPower  = scenario.Taste{Kinds: []string{"power", "slow-disk"}, Calm: 3 * time.Second}
	onlyDaemon = scenario.Taste{Kinds: []string{"daemon"}, Calm: 3 * time.Second}
	onlyUplink = scenario.Taste{Kinds: []string{"uplink", "pause", "kill"}, Calm: 8 * time.Second, Delegate: true}
	onlyKill   = scenario.Taste{Kinds: []string{"kill"}, Calm: 8 * time.Second, TTL: 3 * time.Second}
	// silentNodes are holders whose effects are protected and who stop at their ttl.
	silentNodes = scenario.Taste{Kinds: []string{"mute", "cut"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Late: true, Longest: 20 * time.Second, Adjust: protects}
	// mutedLeaders are among them those that hear heartbeats and are not heard by a majority.
	mutedLeaders = scenario.Taste{Kinds: []string{"mute"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Late: true, Longest: 20 * time.Second, Adjust: protects}
	// loners go on alone, while their work is given to others.
	loners = scenario.Taste{Kinds: []string{"cut", "mute", "raise"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Longest: 45 * time.Second, Adjust: goesOn}
	// revoked are cut off while the daemon gives their work anew, and nobody gets it before they have certainly stopped.
	revoked = scenario.Taste{Kinds: []string{"cut", "raise"}, Calm: 5 * time.Second, TTL: 3 * time.Second, Longest: 25 * time.Second, Delegate: true, Adjust: protectsAlone}
	// takenAway is protected work whose lease people revoke, from holders who may not hear of it.
	takenAway = scenario.Taste{Kinds: []string{"revoke", "cut", "revoke"}, Calm: 5 * time.Second, TTL: 3 * time.Second, Longest: 20 * time.Second, Adjust: protects}
	// copied is protected work on machines whose data dir somebody starts elsewhere.
	copied = scenario.Taste{Kinds: []string{"copy"}, Calm: 8 * time.Second, TTL: 15 * time.Second, Longest: 4 * time.Second, Adjust: protects}
	// shortened is protected work that goes on in place while the site's leases change.
	shortened = scenario.Taste{Kinds: []string{"ttl", "cut"}, Calm: 5 * time.Second, TTL: 30 * time.Second, Longest: 30 * time.Second, Adjust: goesOnInPlace}
	// hardEnds is delegated work that has a hard end before it can be done.
	hardEnds = scenario.Taste{Kinds: []string{"uplink", "kill"}, Calm: 15 * time.Second, Delegate: true, Adjust: endsEarly}
	// crowded are sites whose disks are slow: commands wait for each other.
	crowded = scenario.Taste{Kinds: []string{"slow-disk", "slow-disk", "kill"}, Calm: 2 * time.Second, Longest: 40 * time.Second, Adjust: atOnce}
	// ownWork are ingests, and jobs that nobody may take over from a holder who cannot be reached.
	ownWork = scenario.Taste{Own: true, Kinds: []string{"cut", "mute", "raise"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Longest: 45 * time.Second}
	// restoredDevices are sites that go on from a backup.
	restoredDevices = scenario.Taste{Restore: true, Kinds: []string{"cut"}, Calm: 25 * time.Second, TTL: 3 * time.Second, Longest: 10 * time.Second, Length: 90 * time.Second}
	// askedBack is work that is never retried, on runners that people drain while it runs.
	askedBack = scenario.Taste{Kinds: []string{"drain", "kill"}, Calm: 8 * time.Second, TTL: 6 * time.Second, Longest: 5 * time.Second, Adjust: once}
	// mixed are sites whose programs are upgraded one after the other.
	mixed = scenario.Taste{Mixed: true, Persons: true, Kinds: []string{"revoke", "kill"}, Calm: 8 * time.Second}
	// recovering are sites that lost all voters but one, and whose holders go on for a while.
	recovering = scenario.Taste{Recover: true, Kinds: []string{"cut"}, Calm: 25 * time.Second, TTL: 3 * time.Second, Longest: 20 * time.Second, Adjust: outlives}
	// recoveringSoon are the same with holders that go on for less long: more of their leases
	// were given anew before the site is recovered from one that does not know.
	recoveringSoon = scenario.Taste{Recover: true, Kinds: []string{"cut"}, Calm: 25 * time.Second, TTL: 3 * time.Second, Longest: 20 * time.Second, Adjust: outlivesShortly}
	// queuing are the same with more work than the nodes can take at once.
	queuing = scenario.Taste{Recover: true, Kinds: []string{"kill"}, Calm: 40 * time.Second, TTL: 3 * time.Second, Adjust: waits}
	// recoveringFree are among them those whose work may be done twice.
	recoveringFree = scenario.Taste{Recover: true, Kinds: []string{"cut"}, Calm: 25 * time.Second, TTL: 3 * time.Second, Longest: 20 * time.Second, Adjust: goesOn}
	// recoveringCrowded are those whose disks are slow: what is committed is known late.
	recoveringCrowded = scenario.Taste{Recover: true, Kinds: []string{"slow-disk"}, Calm: 2 * time.Second, Longest: 40 * time.Second, Adjust: atOnce}
	// recoveringTwice lose their voters once more, and restored go on then from a backup of before the first time.
	recoveringTwice = scenario.Taste{Again: true, Kinds: []string{"kill"}, Calm: 5 * time.Second, TTL: 3 * time.Second, Length: 4 * time.Minute, Adjust: restless}
	restored        = scenario.Taste{Restore: true, Kinds: []string{"cut"}, Calm: 25 * time.Second, TTL: 3 * time.Second, Longest: 20 * time.Second, Adjust: outlives}
	restoredSaving  = scenario.Taste{Restore: true, Kinds: []string{"kill"}, Calm: 25 * time.Second, TTL: 3 * time.Second, Adjust: outlivesSaving}
	withDevice      = scenario.Taste{Kinds: []string{"cut", "mute"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Longest: 40 * time.Second, Devices: true, Adjust: goesOn}
	lonersSaving    = scenario.Taste{Kinds: []string{"cut", "mute"}, Calm: 8 * time.Second, TTL: 3 * time.Second, Longest: 25 * time.Second, Adjust: goesOnSaving}
	// longSilence is longer than what two clocks agree on: one holder at a time is cut off,
	// and its leader goes on leading until the end of the count. More cuts at once would
	// take the quorum, and a new leader counts anew.
	longSilence = scenario.Taste{Kinds: []string{"cut"}, Calm: 7 * time.Minute, TTL: 3 * time.Second, Longest: 25 * time.Minute, Length: 32 * time.Minute, Adjust: goesOnForLong}
)

// publishing is work that does something outside, on runners that are lost meanwhile.
var publishing = scenario.Taste{Kinds: []string{"kill", "cut", "pause"}, Calm: 6 * time.Second, TTL: 3 * time.Second, Longest: 12 * time.Second, Adjust: publishes}

func publishes(j *scenario.Job) {
	j.Policy, j.Publishes, j.Work, j.Budget, j.Every, j.Fails, j.Never = scenario.Policy{Name: "continuous"}, true, 12*time.Second, 12, 0, false, false
}

func protects(j *scenario.Job) {
	j.Policy, j.Effects, j.Work, j.Budget, j.Every = scenario.Policy{Name: "continuous"}, true, time.Minute, 12, 0
}

func goesOn(j *scenario.Job) {
	j.Policy, j.Effects, j.Work, j.Budget, j.Fails = scenario.Policy{Name: "offline", For: 90 * time.Second}, false, 15*time.Second, 12, false
}

func goesOnInPlace(j *scenario.Job) {
	protects(j)
	j.Every, j.Sealed = 15*time.Second, false
}

func protectsAlone(j *scenario.Job) {
	goesOn(j)
	j.Effects, j.Every = true, 0
	j.Grant = scenario.Policy{Name: "offline", For: time.Minute}
}

func outlives(j *scenario.Job) {
	j.Policy, j.Effects, j.Work, j.Budget, j.Every, j.Devices = scenario.Policy{Name: "offline", For: 40 * time.Second}, true, 50*time.Second, 12, 0, 0
	j.Broken, j.Input = 0, false
}

func outlivesSaving(j *scenario.Job) {
	outlives(j)
	j.Effects, j.Every, j.Sealed, j.Rejects = false, 3*time.Second, true, 0
}

// once is work that is never retried, and has no checkpoint to go on from.
func once(j *scenario.Job) {
	goesOn(j)
	j.Never, j.Every, j.Budget, j.Devices, j.Broken, j.Input = true, 0, 0, 0, 0, false
}

// restless is work that is granted again and again, since whoever has it dies.
func restless(j *scenario.Job) {
	goesOn(j)
	j.Policy, j.Work, j.Every, j.Devices, j.Broken, j.Input = scenario.Policy{Name: "continuous"}, 50*time.Second, 0, 0, 0, false
}

func outlivesShortly(j *scenario.Job) {
	outlives(j)
	j.Policy.For = 8 * time.Second
}

func waits(j *scenario.Job) {
	outlives(j)
	j.At, j.CPU, j.Work = j.At/8, 2500, 25*time.Second
}

func atOnce(j *scenario.Job) {
	j.At, j.Work, j.Broken, j.Budget = j.At.Truncate(20*time.Second)+5*time.Second, min(j.Work, 3*time.Second), 0, 12
}

func endsEarly(j *scenario.Job) {
	j.Policy, j.Work, j.Budget, j.Every, j.Sealed, j.Ends = scenario.Policy{Name: "offline", For: 10 * time.Minute}, 30*time.Second, 12, 4*time.Second, true, 45*time.Second
	j.Grant, j.Stop = scenario.Policy{Name: "offline", For: time.Minute}, time.Second
}

func goesOnSaving(j *scenario.Job) {
	goesOn(j)
	j.Every, j.Sealed, j.Work = 3*time.Second, true, 40*time.Second
}

// goesOnForLong is work of whoever has it from the beginning until it is cut off, and for
// as long again as two clocks need to differ by more than a forced stop may take.
func goesOnForLong(j *scenario.Job) {
	j.Policy, j.Effects, j.Work, j.Budget, j.Every = scenario.Policy{Name: "offline", For: 12 * time.Minute}, true, 33*time.Minute, 0, 0
	j.At, j.Delegated, j.Devices, j.Broken, j.CPU, j.Never = time.Second, false, 0, 0, 500, true
}

func fromZero(_, _ time.Duration) time.Duration { return 0 }

func asCommitted(committed, _ time.Duration) time.Duration { return committed }

func fromReceipt(n *node, _ forgeyard.Instant) forgeyard.Instant { return n.clk.Now() }

func noDrift(c *sitecfg.Site) { c.Lease.Drift = 0 }
