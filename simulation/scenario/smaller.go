package scenario

import (
	"slices"
	"time"
)

// Smaller lists scenarios that have less happen than this one, the boldest cuts first.
// Whoever looks for the shortest that still fails tries them in this order.
func (s Scenario) Smaller(brokenAt time.Duration) []Scenario {
	var out []Scenario
	add := func(c Scenario) { out = append(out, c) }
	if end := brokenAt + time.Second; end < s.Length {
		c := s.clone()
		c.Length = end.Round(time.Second)
		c.Damage = slices.DeleteFunc(c.Damage, func(d Damage) bool { return d.At > c.Length })
		add(c)
	}
	for size := len(s.Damage); size >= 1; size /= 2 {
		for from := 0; from < len(s.Damage); from += size {
			c := s.clone()
			c.Damage = slices.Delete(c.Damage, from, min(from+size, len(c.Damage)))
			add(c)
		}
	}
	for size := len(s.Jobs); size >= 1; size /= 2 {
		for from := 0; from < len(s.Jobs); from += size {
			c := s.clone()
			gone := c.Jobs[from:min(from+size, len(c.Jobs))]
			c.Damage = slices.DeleteFunc(c.Damage, func(d Damage) bool {
				return slices.ContainsFunc(gone, func(j Job) bool { return j.Name == d.Job })
			})
			c.Jobs = slices.Delete(slices.Clone(c.Jobs), from, min(from+size, len(c.Jobs)))
			if len(c.Jobs) > 0 {
				add(c)
			}
		}
	}
	return append(out, s.simpler()...)
}

// simpler keeps all that happens and makes it plainer: fewer nodes, shorter faults, jobs
// without what they may not need.
func (s Scenario) simpler() []Scenario {
	var out []Scenario
	try := func(f func(*Scenario)) {
		c := s.clone()
		f(&c)
		if c.Format() != s.Format() {
			out = append(out, c)
		}
	}
	used := s.Voters
	for _, d := range s.Damage {
		used = max(used, d.Node, d.Peer)
	}
	for _, j := range s.Jobs {
		used = max(used, j.Ingest)
	}
	try(func(c *Scenario) {
		c.Nodes = max(MinNodes, used)
		c.Copies = min(c.Copies, c.Nodes)
		clear(c.Devices[c.Nodes:])
		clear(c.Old[c.Nodes:])
	})
	try(func(c *Scenario) { c.Old = [MaxNodes]bool{} })
	try(func(c *Scenario) { c.Devices = [MaxNodes]int{}; c.everyJob(func(j *Job) { j.Devices = 0 }) })
	try(func(c *Scenario) { c.Slow, c.Late = 0, false })
	try(func(c *Scenario) { c.Copies = 1 })
	try(func(c *Scenario) { c.everyJob(func(j *Job) { j.Input, j.Output = false, false }) })
	try(func(c *Scenario) { c.everyJob(func(j *Job) { j.Every, j.Sealed, j.Rejects = 0, false, 0 }) })
	try(func(c *Scenario) {
		c.everyJob(func(j *Job) { j.Broken, j.Fails, j.Never, j.Stays = 0, false, false, false })
	})
	try(func(c *Scenario) { c.everyJob(func(j *Job) { j.Delegated, j.Grant, j.Ends = false, Policy{}, 0 }) })
	try(func(c *Scenario) { c.everyJob(func(j *Job) { j.Ends = 0 }) })
	try(func(c *Scenario) { c.everyJob(func(j *Job) { j.Policy = Policy{Name: "continuous"} }) })
	try(func(c *Scenario) { c.everyJob(func(j *Job) { j.At /= 2 }) })
	for i := range s.Damage {
		try(func(c *Scenario) {
			if c.Damage[i].For > time.Second {
				c.Damage[i].For = (c.Damage[i].For / 2).Round(100 * time.Millisecond)
			}
		})
	}
	return out
}

func (s *Scenario) everyJob(f func(*Job)) {
	for i := range s.Jobs {
		f(&s.Jobs[i])
	}
}

func (s Scenario) clone() Scenario {
	s.Jobs, s.Damage, s.Expect = slices.Clone(s.Jobs), slices.Clone(s.Damage), nil
	return s
}
