package scenario

import (
	"fmt"
	"strings"
	"time"
)

// Format writes the scenario as a file.
func (s Scenario) Format() string {
	var b strings.Builder
	for _, l := range s.Story {
		fmt.Fprintln(&b, strings.TrimRight("# "+l, " "))
	}
	fmt.Fprintf(&b, "seed %d\nlength %s\nnodes %d voters %d\nlease ttl %s grace %s copies %d\nuplink silent %s grace %s allowance %s\n",
		s.Seed, s.Length, s.Nodes, s.Voters, s.TTL, s.Grace, s.Copies, s.Silent, s.UpGrace, s.Allowed)
	for i, n := range s.Devices {
		if n > 0 {
			fmt.Fprintf(&b, "devices n%d %d\n", i+1, n)
		}
	}
	for i, old := range s.Old {
		if old {
			fmt.Fprintf(&b, "old n%d\n", i+1)
		}
	}
	if s.Slow > 0 {
		fmt.Fprintf(&b, "apply slow %d\n", s.Slow)
	}
	if s.Late {
		fmt.Fprintln(&b, "renewals late")
	}
	for _, j := range s.Jobs {
		fmt.Fprintln(&b, j)
	}
	for _, d := range s.Damage {
		fmt.Fprintln(&b, d)
	}
	for _, e := range s.Expect {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

func (j Job) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s at %s", j.Name, j.At)
	if j.Delegated {
		fmt.Fprintf(&b, " delegated %s %s", j.Grant.Name, j.Grant.For)
		if j.Ends > 0 {
			fmt.Fprintf(&b, " ends %s", j.Ends)
		}
	}
	fmt.Fprintf(&b, " work %s policy %s %s cpu %d budget %d stop %s", j.Work, j.Policy.Name, j.Policy.For, j.CPU, j.Budget, j.Stop)
	if j.Every > 0 {
		fmt.Fprintf(&b, " checkpoint %s", j.Every)
	}
	for _, w := range j.words() {
		if *w.is {
			b.WriteString(" " + w.name)
		}
	}
	for _, n := range j.numbers() {
		if *n.is > 0 {
			fmt.Fprintf(&b, " %s %d", n.name, *n.is)
		}
	}
	return b.String()
}

type word struct {
	name string
	is   *bool
}

// words are the job's facts that need no value, in their order.
func (j *Job) words() []word {
	return []word{{"sealed", &j.Sealed}, {"effects", &j.Effects}, {"never-retried", &j.Never}, {"fails", &j.Fails}, {"input", &j.Input}, {"output", &j.Output}, {"no-replace", &j.Stays}, {"publishes", &j.Publishes}}
}

type number struct {
	name string
	is   *int
}

// numbers are those that have a number, zero unless said.
func (j *Job) numbers() []number {
	return []number{{"broken", &j.Broken}, {"rejects", &j.Rejects}, {"devices", &j.Devices}, {"ingest", &j.Ingest}}
}

func (d Damage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s %s", d.At, d.Kind)
	k := kinds[d.Kind]
	if k.node {
		b.WriteString(" " + nodeName(d.Node, "all"))
	}
	if k.peer {
		b.WriteString(" to " + nodeName(d.Peer, "all"))
	}
	if k.job {
		b.WriteString(" " + d.Job)
	}
	if d.Word != "" {
		b.WriteString(" " + d.Word)
	}
	if k.by {
		fmt.Fprintf(&b, " by %s", d.By)
	}
	if k.noise {
		fmt.Fprintf(&b, " loss %d dup %d tail %d", d.Loss, d.Dup, d.Tail)
	}
	if k.lasts {
		fmt.Fprintf(&b, " for %s", d.For)
	}
	return b.String()
}

func nodeName(n int, none string) string {
	switch n {
	case 0:
		return none
	case Leader:
		return "leader"
	}
	return fmt.Sprintf("n%d", n)
}

func (e Expect) String() string {
	if e.Job != "" {
		return "expect " + e.Status + " " + e.Job
	}
	return "expect " + e.Status + " " + e.Text
}

// round keeps what is drawn readable; it is part of what the seed means.
func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
