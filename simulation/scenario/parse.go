package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Parse reads a file; name is for its errors, which say the line.
func Parse(name string, text []byte) (Scenario, error) {
	if len(text) > maxFile {
		return Scenario{}, forgeyard.Errorf("scenario", forgeyard.Limit, "%s has %d bytes, the bound is %d", name, len(text), maxFile)
	}
	p := parser{}
	for i, l := range strings.Split(string(text), "\n") {
		if err := p.line(strings.TrimRight(l, " \t\r")); err != nil {
			return Scenario{}, forgeyard.Errorf("scenario", forgeyard.Invalid, "%s:%d: %v", name, i+1, err)
		}
	}
	if err := p.s.check(p.seen); err != nil {
		return Scenario{}, forgeyard.Errorf("scenario", forgeyard.Invalid, "%s: %v", name, err)
	}
	return p.s, nil
}

type parser struct {
	s    Scenario
	rest []string // words of the line
	seen []string // keywords of lines that may come once
}

func (p *parser) line(l string) error {
	if strings.HasPrefix(l, "#") {
		if len(p.seen) == 0 {
			p.s.Story = append(p.s.Story, strings.TrimPrefix(l[1:], " "))
		}
		return nil
	}
	p.rest = strings.Fields(l)
	if len(p.rest) == 0 {
		return nil
	}
	word := p.take()
	switch word {
	case "devices", "old", "job", "at", "expect":
	default:
		if slices.Contains(p.seen, word) {
			return fmt.Errorf("a second line of %q", word)
		}
		p.seen = append(p.seen, word)
	}
	if err := p.fact(word); err != nil {
		return err
	}
	if len(p.rest) > 0 {
		return fmt.Errorf("%q is left over", strings.Join(p.rest, " "))
	}
	return nil
}

func (p *parser) fact(word string) error {
	s := &p.s
	switch word {
	case "seed":
		var err error
		s.Seed, err = strconv.ParseUint(p.take(), 10, 64)
		return err
	case "length":
		return p.span(&s.Length, MaxLength)
	case "nodes":
		return first(p.number(&s.Nodes, MinNodes, MaxNodes), p.the("voters"), p.number(&s.Voters, 1, MaxNodes))
	case "lease":
		return first(p.the("ttl"), p.span(&s.TTL, time.Minute), p.the("grace"), p.span(&s.Grace, time.Minute), p.the("copies"), p.number(&s.Copies, 1, MaxNodes))
	case "uplink":
		return first(p.the("silent"), p.span(&s.Silent, time.Minute), p.the("grace"), p.span(&s.UpGrace, MaxLength), p.the("allowance"), p.span(&s.Allowed, MaxLength))
	case "devices":
		var n, count int
		if err := first(p.node(&n), p.number(&count, 1, 9)); err != nil {
			return err
		}
		if n < 1 {
			return fmt.Errorf("devices stand at one node, n1 to n%d", MaxNodes)
		}
		s.Devices[n-1] = count
		return nil
	case "old":
		var n int
		if err := p.node(&n); err != nil {
			return err
		}
		if n < 1 {
			return fmt.Errorf("one node is old, n1 to n%d", MaxNodes)
		}
		s.Old[n-1] = true
		return nil
	case "apply":
		return first(p.the("slow"), p.number(&s.Slow, 1, 1000))
	case "renewals":
		s.Late = true
		return p.the("late")
	case "job":
		return p.job()
	case "at":
		return p.damage()
	case "expect":
		return p.expect()
	}
	return fmt.Errorf("%q begins no line; allowed: seed, length, nodes, lease, uplink, devices, old, apply, renewals, job, at, expect", word)
}

func (p *parser) job() error {
	j := Job{Name: p.take()}
	if len(p.s.Jobs) == MaxJobs {
		return fmt.Errorf("more than %d jobs", MaxJobs)
	}
	if !plain(j.Name) || p.s.jobNamed(j.Name) {
		return fmt.Errorf("%q is no name for a job, or was given before", j.Name)
	}
	if err := first(p.the("at"), p.span(&j.At, MaxLength)); err != nil {
		return err
	}
	if j.Delegated = p.peek() == "delegated"; j.Delegated {
		p.take()
		if err := p.policy(&j.Grant); err != nil {
			return err
		}
		if p.peek() == "ends" {
			p.take()
			if err := p.span(&j.Ends, MaxLength); err != nil {
				return err
			}
		}
	}
	var cpu int
	err := first(p.the("work"), p.span(&j.Work, MaxLength), p.the("policy"), p.policy(&j.Policy), p.the("cpu"), p.number(&cpu, 1, 3000),
		p.the("budget"), p.number(&j.Budget, 0, 100), p.the("stop"), p.span(&j.Stop, time.Minute))
	if err != nil {
		return err
	}
	j.CPU = int64(cpu)
	if p.peek() == "checkpoint" {
		p.take()
		if err := p.span(&j.Every, MaxLength); err != nil {
			return err
		}
	}
	for _, w := range j.words() {
		if *w.is = p.peek() == w.name; *w.is {
			p.take()
		}
	}
	for _, n := range j.numbers() {
		if p.peek() == n.name {
			p.take()
			if err := p.number(n.is, 1, 9); err != nil {
				return err
			}
		}
	}
	p.s.Jobs = append(p.s.Jobs, j)
	return nil
}

func (p *parser) policy(to *Policy) error {
	to.Name = p.take()
	switch to.Name {
	case "continuous", "grace", "offline":
		return p.span(&to.For, MaxLength)
	}
	return fmt.Errorf("%q is no policy; allowed: continuous, grace, offline", to.Name)
}

func (p *parser) damage() error {
	var d Damage
	if len(p.s.Damage) == MaxDamage {
		return fmt.Errorf("more than %d damages", MaxDamage)
	}
	if err := p.span(&d.At, MaxLength); err != nil {
		return err
	}
	d.Kind = p.take()
	k, ok := kinds[d.Kind]
	if !ok {
		return fmt.Errorf("%q is no damage", d.Kind)
	}
	if k.node {
		if err := p.node(&d.Node); err != nil {
			return err
		}
	}
	if k.peer {
		if err := first(p.the("to"), p.node(&d.Peer)); err != nil {
			return err
		}
	}
	if k.job {
		if d.Job = p.take(); !p.s.jobNamed(d.Job) {
			return fmt.Errorf("no job %q stands above", d.Job)
		}
	}
	if slices.Contains(k.words, p.peek()) {
		d.Word = p.take()
	}
	var errs []error
	if k.by {
		errs = append(errs, p.the("by"), p.span(&d.By, MaxLength))
	}
	if k.noise {
		errs = append(errs, p.the("loss"), p.number(&d.Loss, 0, 999), p.the("dup"), p.number(&d.Dup, 0, 999), p.the("tail"), p.number(&d.Tail, 0, 999))
	}
	if k.lasts {
		errs = append(errs, p.the("for"), p.span(&d.For, MaxLength))
	}
	p.s.Damage = append(p.s.Damage, d)
	return first(errs...)
}

func (p *parser) expect() error {
	e := Expect{Status: p.take()}
	switch e.Status {
	case "done", "failed", "cancelled":
		if e.Job = p.take(); !p.s.jobNamed(e.Job) {
			return fmt.Errorf("no job %q stands above", e.Job)
		}
	case "trace", "none":
		if e.Text, p.rest = strings.Join(p.rest, " "), nil; e.Text == "" {
			return fmt.Errorf("nothing to look for")
		}
	default:
		return fmt.Errorf("%q cannot be expected; allowed: done, failed, cancelled, trace, none", e.Status)
	}
	p.s.Expect = append(p.s.Expect, e)
	return nil
}

func (p *parser) peek() string {
	if len(p.rest) == 0 {
		return ""
	}
	return p.rest[0]
}

func (p *parser) take() string {
	w := p.peek()
	if len(p.rest) > 0 {
		p.rest = p.rest[1:]
	}
	return w
}

func (p *parser) the(word string) error {
	if w := p.take(); w != word {
		return fmt.Errorf("%q stands where %q must", w, word)
	}
	return nil
}

func (p *parser) span(to *time.Duration, limit time.Duration) error {
	w := p.take()
	d, err := time.ParseDuration(w)
	if err != nil || d < 0 || d > limit {
		return fmt.Errorf("%q is no time from 0s to %s", w, limit)
	}
	*to = d
	return nil
}

func (p *parser) number(to *int, low, high int) error {
	w := p.take()
	n, err := strconv.Atoi(w)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%q is no number from %d to %d", w, low, high)
	}
	*to = n
	return nil
}

func (p *parser) node(to *int) error {
	w := p.take()
	switch w {
	case "all":
		*to = 0
		return nil
	case "leader":
		*to = Leader
		return nil
	}
	n, err := strconv.Atoi(strings.TrimPrefix(w, "n"))
	if err != nil || w != fmt.Sprintf("n%d", n) || n < 1 || n > MaxNodes {
		return fmt.Errorf("%q is no node; allowed: n1 to n%d, leader, all", w, MaxNodes)
	}
	*to = n
	return nil
}

func first(errs ...error) error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}

func plain(name string) bool {
	return name != "" && len(name) <= 40 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func (s *Scenario) jobNamed(name string) bool {
	return slices.ContainsFunc(s.Jobs, func(j Job) bool { return j.Name == name })
}

// check says what the lines together lack, or nil.
func (s *Scenario) check(seen []string) error {
	for _, w := range []string{"seed", "length", "nodes", "lease", "uplink"} {
		if !slices.Contains(seen, w) {
			return fmt.Errorf("no line says %q", w)
		}
	}
	switch {
	case s.Voters > s.Nodes || s.Voters%2 == 0:
		return fmt.Errorf("%d voters of %d nodes: an odd number of them votes", s.Voters, s.Nodes)
	case s.TTL < time.Second:
		return fmt.Errorf("ttl %s is under a second", s.TTL)
	case s.Silent < time.Second || s.Allowed < s.Silent:
		return fmt.Errorf("the uplink is silent after %s and allowed %s: at least a second, and the second no less than the first", s.Silent, s.Allowed)
	case s.Copies > s.Nodes:
		return fmt.Errorf("%d copies on %d nodes", s.Copies, s.Nodes)
	}
	for i, n := range s.Devices {
		if n > 0 && i >= s.Nodes {
			return fmt.Errorf("devices of n%d, and there are %d nodes", i+1, s.Nodes)
		}
		if s.Old[i] && i >= s.Nodes {
			return fmt.Errorf("n%d is old, and there are %d nodes", i+1, s.Nodes)
		}
	}
	for _, j := range s.Jobs {
		if j.Ingest == 0 {
			continue
		}
		switch {
		case j.Ingest > s.Nodes:
			return fmt.Errorf("job %s brings in what n%d has, and there are %d nodes", j.Name, j.Ingest, s.Nodes)
		case j.Delegated || j.Every > 0 || j.Effects || j.Publishes || j.Input || j.Output || j.Devices > 0 || j.Broken > 0 || j.Rejects > 0:
			return fmt.Errorf("job %s is an ingest: it has nothing but its work, its policy and what comes of it", j.Name)
		}
	}
	for _, d := range s.Damage {
		if d.Node > s.Nodes || d.Peer > s.Nodes {
			return fmt.Errorf("%q, and there are %d nodes", d, s.Nodes)
		}
	}
	return nil
}
