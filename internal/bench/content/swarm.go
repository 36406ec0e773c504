package content

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

// hall is some network namespaces with one bridge between them. What each sends is
// bounded to a rate, as behind an ordinary network card.
type hall struct {
	prefix string
	spaces []string
}

func ip(words string) error {
	out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", words, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// newHall makes n namespaces; what it could not make is taken away again.
func newHall(n, mbit int) (h *hall, err error) {
	h = &hall{prefix: fmt.Sprintf("fyb%d", os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	hub := h.prefix + "hub"
	if err := ip("netns add " + hub); err != nil {
		return h, err
	}
	h.spaces = append(h.spaces, hub)
	if err := errors.Join(ip("-n "+hub+" link add br0 type bridge"), ip("-n "+hub+" link set br0 up")); err != nil {
		return h, err
	}
	for i := range n {
		space := fmt.Sprintf("%s-%d", h.prefix, i)
		if err := ip("netns add " + space); err != nil {
			return h, err
		}
		h.spaces = append(h.spaces, space)
		for _, w := range []string{
			fmt.Sprintf("-n %s link add e0 type veth peer name p%d netns %s", space, i, hub),
			fmt.Sprintf("-n %s link set p%d master br0 up", hub, i), fmt.Sprintf("-n %s link set lo up", space),
			fmt.Sprintf("-n %s addr add %s/24 dev e0", space, hallAddr(i)), fmt.Sprintf("-n %s link set e0 up", space),
		} {
			if err := ip(w); err != nil {
				return h, err
			}
		}
		tc := exec.Command("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "e0", "root", "tbf", "rate", fmt.Sprintf("%dmbit", mbit), "burst", "256kb", "latency", "100ms")
		if out, err := tc.CombinedOutput(); err != nil {
			return h, fmt.Errorf("tc: %w: %s", err, out)
		}
	}
	return h, nil
}

func hallAddr(i int) string { return fmt.Sprintf("10.79.0.%d", i+1) }

// space is the i-th namespace.
func (h *hall) space(i int) string { return h.spaces[i+1] }

func (h *hall) close() error {
	var errs []error
	for _, s := range h.spaces {
		errs = append(errs, ip("netns del "+s))
	}
	h.spaces = nil
	return errors.Join(errs...)
}

const (
	swarmSize = 128 << 20
	swarmMbit = 400
)

// swarms brings one blob from one holder to one, three and eight at once, each behind a
// line of 400 Mbit/s, and the same by the stock bitswap to three.
func (b *Bench) swarms(ctx context.Context) (err error) {
	names := []string{"content.swarm_three_vs_one", "content.swarm_eight_vs_one", "content.swarm_three_vs_bitswap", "content.swarm_death_costs"}
	goals := []report.Result{{Goal: 1.2, Unit: report.Ratio}, {Goal: 1.5, Unit: report.Ratio}, {Goal: 2, Unit: report.Ratio, Least: true}, {Goal: 2, Unit: report.Millis}}
	h, err := newHall(9, swarmMbit)
	if err != nil {
		for i, r := range goals {
			r.Name, r.Absent = names[i], "no namespaces: "+strings.ReplaceAll(err.Error(), "\n", "; ")
			b.Add(r)
		}
		return nil
	}
	defer func() { err = errors.Join(err, h.close()) }()
	all := make([][]float64, len(names))
	for i := range b.Rounds {
		var took, cpu, sent [5]float64
		for k, s := range []struct {
			kind  string
			n     int
			death bool
		}{{"ours", 1, false}, {"ours", 3, false}, {"ours", 8, false}, {"boxo", 3, false}, {"ours", 3, true}} {
			if took[k], cpu[k], sent[k], err = b.swarm(ctx, h, s.kind, s.n, s.death); err != nil {
				return err
			}
		}
		fmt.Fprintf(b.Out, "128 MiB behind 400 Mbit/s, round %d: to one %.2fs, three %.2fs (all sent %.2f times), eight %.2fs (%.2f times) with %.1fs of CPU; bitswap to three %.2fs; three of which one dies %.2fs; load %s\n",
			i+1, took[0], took[1], sent[1], took[2], sent[2], cpu[2], took[3], took[4], report.Load())
		for k, v := range []float64{took[1] / took[0], took[2] / took[0], took[3] / took[1], max(0, took[4]-took[1])} {
			all[k] = append(all[k], v)
		}
	}
	for i, r := range goals {
		m := report.Measured(names[i], r.Unit, r.Goal, all[i])
		m.Least = r.Least
		b.Add(m)
	}
	return nil
}

// swarm is the time until the last of n has all, from the moment at which they were
// told to begin. With death the last of them is killed when half of the time of one
// has passed, and the others count. cpu is what all of them took of it, and sent how often the holder sent all.
func (b *Bench) swarm(ctx context.Context, h *hall, kind string, n int, death bool) (seconds, cpu, sent float64, err error) {
	dir, err := os.MkdirTemp("", "swarm-")
	if err != nil {
		return 0, 0, 0, err
	}
	var all []*child
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.end())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	cfg := party.Config{Kind: kind, Size: swarmSize, Seed: 2}
	raise := func(i int) (*child, error) {
		cfg.Dir, cfg.Listen = filepath.Join(dir, fmt.Sprint(i)), hallAddr(i)+":7444"
		if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
			return nil, err
		}
		c, err := b.raise(ctx, h.space(i), cfg)
		if err == nil {
			all = append(all, c)
		}
		return c, err
	}
	holder, err := raise(0)
	if err != nil {
		return 0, 0, 0, err
	}
	cfg.From, cfg.Ref, cfg.Names = []party.At{holder.at.At}, holder.at.Ref, holder.at.Names
	var takers []*child
	var met []party.At
	for i := range n {
		c, err := raise(i + 1)
		if err != nil {
			return 0, 0, 0, err
		}
		takers, met = append(takers, c), append(met, c.at.At)
	}
	who, err := json.Marshal(met)
	if err != nil {
		return 0, 0, 0, err
	}
	for _, c := range takers {
		if _, err := c.ask("meet " + string(who)); err != nil {
			return 0, 0, 0, err
		}
	}
	if seconds, err = together(takers, death); err != nil {
		return 0, 0, 0, err
	}
	for _, c := range all {
		if u, err := c.ask("usage"); err == nil { // who was killed says nothing
			cpu += u.CPU
			if c == holder {
				sent = u.Sent / swarmSize
			}
		}
	}
	return seconds, cpu, sent, nil
}

// together lets all begin at once and waits for the last.
func together(takers []*child, death bool) (float64, error) {
	type end struct {
		i   int
		err error
	}
	ends := make(chan end, len(takers))
	t0 := time.Now()
	for i, c := range takers {
		go func() {
			_, err := c.ask("bring")
			ends <- end{i, err}
		}()
	}
	victim, kill := -1, (<-chan time.Time)(nil)
	if death {
		victim, kill = len(takers)-1, time.After(time.Duration(float64(swarmSize)*8/(swarmMbit*1e6)/2*float64(time.Second)))
	}
	for left := len(takers); left > 0; {
		select {
		case <-kill:
			if err := takers[victim].cmd.Process.Kill(); err != nil {
				return 0, err
			}
		case e := <-ends:
			left--
			if e.err != nil && e.i != victim {
				return 0, e.err
			}
		}
		if victim >= 0 && left == 1 && len(takers) > 1 && len(ends) == 0 {
			// only the victim may be left, which was killed or was done first
			_ = takers[victim].cmd.Process.Kill()
		}
	}
	return time.Since(t0).Seconds(), nil
}
