package content

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

// fault is what ails one of two peers that are named to who brings something.
type fault struct {
	name string
	goal float64 // seconds that it may add
	// ail makes the peer so, in namespace 2. It was met while it was well.
	ail func(ctx context.Context, h *hall, c *child) error
	rot bool // it answers with other bytes
}

var faultKinds = []fault{
	{name: "dead", goal: 0.5, ail: func(_ context.Context, _ *hall, c *child) error { return errors.Join(c.cmd.Process.Kill(), c.end()) }},
	{name: "black_holed", goal: 0.5, ail: func(_ context.Context, h *hall, _ *child) error {
		return ip("-n " + h.space(2) + " link set e0 down")
	}},
	{name: "corrupt", goal: 2, rot: true, ail: func(context.Context, *hall, *child) error { return nil }},
}

// faults brings one blob from a good peer, alone and beside one that is dead, silent or
// wrong, and tells what that costs.
func (b *Bench) faults(ctx context.Context) (err error) {
	h, err := newHall(3, swarmMbit)
	if err != nil {
		for _, f := range faultKinds {
			b.Add(report.Result{Name: f.result(), Goal: f.goal, Unit: report.Millis}.Lacking("no namespaces: " + err.Error()))
		}
		return nil
	}
	defer func() { err = errors.Join(err, h.close()) }()
	all := make([][]float64, len(faultKinds))
	for i := range b.Rounds {
		alone, err := b.ailing(ctx, h, nil)
		if err != nil {
			return err
		}
		var words []string
		for k, f := range faultKinds {
			took, err := b.ailing(ctx, h, &f)
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			all[k] = append(all[k], max(0, took-alone))
			words = append(words, fmt.Sprintf("%s %.2fs", f.name, took))
		}
		b.Say("128 MiB behind 400 Mbit/s, round %d: from a good peer alone %.2fs, beside one that is %s; load %s", i+1, alone, strings.Join(words, ", "), report.Load())
	}
	for k, f := range faultKinds {
		b.Add(report.Measured(f.result(), report.Millis, f.goal, all[k]))
	}
	return nil
}

func (f fault) result() string { return "content." + f.name + "_peer_adds" }

// ailing takes the time of one transfer from a good peer; the other one, if any, is named
// before it.
func (b *Bench) ailing(ctx context.Context, h *hall, f *fault) (seconds float64, err error) {
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		return 0, err
	}
	var all []*child
	defer func() {
		if f != nil {
			err = errors.Join(err, ip("-n "+h.space(2)+" link set e0 up"))
		}
		for _, c := range all {
			err = errors.Join(err, c.end())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	cfg := party.Config{Kind: "ours", Size: swarmSize, Seed: 2}
	raise := func(i int, rot bool) (*child, error) {
		cfg.Dir, cfg.Listen, cfg.Rot = filepath.Join(dir, fmt.Sprint(i)), hallAddr(i)+":7444", rot
		if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
			return nil, err
		}
		c, err := b.raise(ctx, h.space(i), cfg)
		if err == nil {
			all = append(all, c)
		}
		return c, err
	}
	good, err := raise(0, false)
	if err != nil {
		return 0, err
	}
	from := []party.At{good.at.At}
	var ill *child
	if f != nil {
		if ill, err = raise(2, f.rot); err != nil {
			return 0, err
		}
		from = append([]party.At{ill.at.At}, from...)
	}
	cfg.From, cfg.Ref = from, good.at.Ref
	taker, err := raise(1, false)
	if err != nil {
		return 0, err
	}
	if f != nil {
		if err := f.ail(ctx, h, ill); err != nil {
			return 0, err
		}
	}
	s, err := taker.ask("bring")
	return s.Seconds, err
}
