package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/internal/bench/rpc"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// load of one round, as clients and operations; ours does more of them in the same time.
var grantLoads = []struct{ clients, ours, peers int }{{1, 3000, 1000}, {16, 3000, 1000}, {128, 8000, 2560}}

// sameBeat is the election timeout at which both sides are compared after a kill.
const sameBeat = 500 * time.Millisecond

// leaseParts are those of the suite lease that need no site; leaseSuite is one more, jobs.
var leaseParts = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"grants", (*bench).grants}, {"renewals", (*bench).renewals}, {"history", (*bench).history},
}

// raftSuite measures the site's log and its state.
func (b *bench) raftSuite(ctx context.Context) error {
	known := b.part == "" || b.part == jobsPart
	for _, p := range leaseParts {
		if b.part != "" && b.part != p.name {
			continue
		}
		known = true
		if err := p.run(b, ctx); err != nil {
			return err
		}
	}
	if !known {
		return fmt.Errorf("there is no part %q; grants, renewals, history and jobs are there", b.part)
	}
	return nil
}

// grants compares the site's log with etcd: what a lease grant costs, and how soon the next
// one is after the leader was killed. Ours and the peer's take turns, each with fresh
// processes on the same disk.
func (b *bench) grants(ctx context.Context) error {
	peer, err := peerProgram(ctx)
	if err != nil {
		fmt.Fprintf(b.Out, "no peer: %v\n", err)
	}
	rate, p99 := map[int][]float64{}, map[int][]float64{}
	var killOurs, killPeer, killRatio []float64
	for round := range b.rounds {
		dir := filepath.Join(b.site.Dir, fmt.Sprint("raft", round))
		ours, k, err := b.sideOf(ctx, dir, "", 0)
		if err != nil {
			return err
		}
		killOurs = append(killOurs, k)
		if peer == "" {
			continue
		}
		theirs, k, err := b.sideOf(ctx, dir, peer, sameBeat)
		if err != nil {
			return err
		}
		killPeer = append(killPeer, k)
		killRatio = append(killRatio, killOurs[round]/k) // our default is the same
		for i, l := range grantLoads {
			rate[l.clients] = append(rate[l.clients], ours[i].Rate/theirs[i].Rate)
			p99[l.clients] = append(p99[l.clients], ours[i].P99/theirs[i].P99)
		}
	}
	for _, l := range grantLoads {
		b.Add(orAbsent(report.Measured(fmt.Sprintf("lease.grant_rate_to_etcd_%d", l.clients), inTimes, 3, rate[l.clients]).AtLeast(), peer))
		b.Add(orAbsent(report.Measured(fmt.Sprintf("lease.grant_p99_to_etcd_%d", l.clients), inTimes, 0.5, p99[l.clients]), peer))
	}
	b.Add(report.Measured("lease.leader_killed_to_next_grant", report.Millis, 1.2, killOurs))
	fmt.Fprintf(b.Out, "etcd at the same timeouts: next grant %s after the leader was killed (median)\n", report.Millis(median(killPeer)))
	b.Add(orAbsent(report.Measured("lease.leader_killed_to_etcd_same_timeouts", inTimes, 1.3, killRatio), peer))
	return nil
}

func inTimes(v float64) string { return fmt.Sprintf("%.2fx", v) }

func median(all []float64) float64 { return report.Measured("median", inTimes, 0, all).Median }

func orAbsent(r report.Result, peer string) report.Result {
	if peer == "" {
		r.Absent = "etcd could not be built: scripts/bench-peer.sh says why"
	}
	return r
}

// peerProgram builds the peer, which takes a while the first time.
func peerProgram(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "scripts/bench-peer.sh").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%w: %.300s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// sideOf measures one side once: the loads, then the kill.
func (b *bench) sideOf(ctx context.Context, dir, peer string, beat time.Duration) ([]figures, float64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, 0, err
	}
	var side *trio
	var err error
	if peer == "" {
		side, err = startOurs(ctx, dir, beat)
	} else {
		side, err = startPeer(ctx, peer, dir, beat)
	}
	defer side.stop()
	if err != nil {
		return nil, 0, err
	}
	var all []figures
	name := map[bool]string{true: "ours", false: "etcd"}[peer == ""]
	for _, l := range grantLoads {
		f, err := side.grants(ctx, l.clients, map[bool]int{true: l.ours, false: l.peers}[peer == ""])
		if err != nil {
			return nil, 0, fmt.Errorf("%s, %d clients: %w", name, l.clients, err)
		}
		fmt.Fprintf(b.Out, "%s: %d clients, %.0f grants a second, p50 %s, p99 %s\n", name, l.clients, f.Rate, report.Millis(f.P50), report.Millis(f.P99))
		all = append(all, f)
	}
	k, err := side.killed(ctx)
	fmt.Fprintf(b.Out, "%s: next grant %s after the leader was killed\n", name, report.Millis(k.Seconds()))
	return all, k.Seconds(), err
}

// What the renewals are measured with.
const (
	liveLeases  = 5000
	renewBatch  = 100
	renewFor    = 3 * time.Second
	renewEvery  = 5 * time.Second
	renewRounds = 5
)

// renewals measures how many the leader can answer, what they send to the disks, and what
// a leader with 5,000 live leases costs that are renewed every five seconds.
func (b *bench) renewals(ctx context.Context) error {
	dir := filepath.Join(b.site.Dir, "renewals")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	t, err := startOurs(ctx, dir, 0)
	defer t.stop()
	if err != nil {
		return err
	}
	i, err := t.leader(ctx)
	if err != nil {
		return err
	}
	held, err := t.accepted(ctx, t.at[i], liveLeases)
	if err != nil {
		return err
	}
	beats := heartbeats(held, renewBatch)
	var rates, cpu, grown, wrote []float64
	for range renewRounds {
		rate, entries, bytes, err := t.renewHard(ctx, i, beats)
		if err != nil {
			return err
		}
		share, err := t.renewCalmly(ctx, i, beats)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "renewals: %.0f a second, %.0f entries and %.0f bytes to the disks meanwhile; %d leases every %s: %s of a core\n", rate, entries, bytes, liveLeases, renewEvery, report.Percent(share))
		rates, grown, wrote, cpu = append(rates, rate), append(grown, entries), append(wrote, bytes), append(cpu, share)
	}
	b.Add(report.Measured("lease.renewals_a_second", report.Count, 20_000, rates).AtLeast())
	b.Add(report.Measured("lease.renewals_log_entries", report.Count, 0, grown))
	b.Add(report.Measured("lease.renewals_disk_bytes", report.Count, 0, wrote))
	b.Add(report.Measured("lease.leader_cpu_5000_leases", report.Percent, 5, cpu))
	return nil
}

// renewHard sends heartbeats as fast as they are answered.
func (t *trio) renewHard(ctx context.Context, leader int, beats [][]byte) (rate, entries, wrote float64, err error) {
	before, err := rpc.Post[trioStat](ctx, t.http, t.at[leader], "/stat?log", nil)
	if err != nil {
		return 0, 0, 0, err
	}
	disk, err := bytesWritten(t.pids())
	if err != nil {
		return 0, 0, 0, err
	}
	var renewed atomic.Int64
	began := time.Now()
	err = rpc.Each(16, make([]struct{}, 16), func(struct{}) error {
		for n := 0; time.Since(began) < renewFor; n++ {
			kept, err := rpc.Post[int](ctx, t.http, t.at[leader], "/renew", beats[n%len(beats)])
			if err != nil {
				return err
			}
			renewed.Add(int64(kept))
		}
		return nil
	})
	rate = float64(renewed.Load()) / time.Since(began).Seconds()
	if err != nil {
		return 0, 0, 0, err
	}
	after, err := rpc.Post[trioStat](ctx, t.http, t.at[leader], "/stat?log", nil)
	if err != nil {
		return 0, 0, 0, err
	}
	now, err := bytesWritten(t.pids())
	return rate, float64(after.LastIndex - before.LastIndex), float64(now - disk), err
}

// renewCalmly renews every lease once in renewEvery and returns the leader's share of a core.
func (t *trio) renewCalmly(ctx context.Context, leader int, beats [][]byte) (float64, error) {
	before, err := report.CostOf(t.pids()[leader])
	if err != nil {
		return 0, err
	}
	began := time.Now()
	pace := time.NewTicker(renewEvery / time.Duration(len(beats)))
	defer pace.Stop()
	for _, beat := range append(beats, beats...) {
		if _, err := rpc.Post[int](ctx, t.http, t.at[leader], "/renew", beat); err != nil {
			return 0, err
		}
		<-pace.C
	}
	after, err := report.CostOf(t.pids()[leader])
	return 100 * (after.CPU - before.CPU).Seconds() / time.Since(began).Seconds(), err
}

// historyJobs is how many jobs end before the state is written and read.
const historyJobs = 100_000

// history applies the whole life of many jobs. The site keeps the newest of the ended ones
// and forgets the others, so the state is bounded; what a kept one takes is counted.
func (b *bench) history(context.Context) error {
	s, index := &site.State{}, uint64(0)
	var failed error
	apply := func(body site.Body) site.Reply {
		index++
		next, r := s.ApplyEntry(index, 1, site.Command{ID: forgeyard.MessageID(fmt.Sprint("h", index)), At: forgeyard.Wall(1_800_000_000_000 + int64(index)), By: "bench", Body: body}.Encode())
		if err := r.Err(); err != nil && failed == nil {
			failed = fmt.Errorf("%T: %w", body, err)
		}
		s = next
		return r
	}
	apply(initCommand())
	apply(registerCommand())
	for f := s.LogFormat(); f < site.FormatNow; f++ { // as a site's leader does in its first second
		apply(site.FormatRaise{To: f + 1, Voters: []forgeyard.RunnerID{runnerID}})
	}
	empty := len(s.Snapshot())
	raw := job.Spec{Title: "bench", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	began := time.Now()
	for n := range historyJobs {
		v, err := site.Value[site.Submitted](apply(site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
		if err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		a, err := site.Value[forgeyard.Authority](apply(site.Offer{Job: v.Job, Runner: runnerID, Session: sessionID}))
		if err != nil {
			return err
		}
		apply(site.Accept{Authority: a})
		apply(site.Complete{Authority: a, Message: forgeyard.MessageID(fmt.Sprint("m", n)), Result: job.Result{Outcome: job.OutcomeDone}})
	}
	fmt.Fprintf(b.Out, "history: %d jobs in %d commands applied in %s; %d ended jobs are kept\n", historyJobs, index, time.Since(began).Round(time.Millisecond), s.Ended.Len())
	var took []float64
	var size int
	for range b.rounds {
		began := time.Now()
		image := s.Snapshot()
		back, err := site.DecodeState(image)
		if err != nil {
			return err
		}
		took, size = append(took, time.Since(began).Seconds()), len(image)
		if back.Hash() != s.Hash() {
			return fmt.Errorf("the state does not survive its snapshot")
		}
	}
	b.Add(report.Measured("lease.history_snapshot_and_restore", report.Millis, 5, took))
	// The memory of requests is bounded by itself, and as large with no job as with many.
	bare := *s
	bare.Requests, bare.Order = (&site.State{}).Requests, (&site.State{}).Order
	kept := float64(max(1, s.Ended.Len()))
	without := len(bare.Snapshot())
	fmt.Fprintf(b.Out, "history: %s of state, of which %s are the replies kept for repeats; not packed a finished job takes %d bytes\n", report.MiB(float64(size)), report.MiB(float64(size-without)), int(float64(len(bare.Encode())-empty)/kept))
	b.Add(report.Measured("lease.history_bytes_a_finished_job", report.Count, 1024, []float64{float64(without-empty) / kept}))
	return failed
}
