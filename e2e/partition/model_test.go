package partition

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The models say what a site may answer if each call took effect at one instant between
// its invocation and its return. A call that got no answer took effect at any instant
// after its invocation, or never.

// something is the id of what was made for a caller that never heard of it.
const something = "?"

// jobState is all that a client can know of one idempotency key.
type jobState struct {
	Job   string // empty: none was submitted under the key
	Phase string // open, cancelling, or the status it ended with
}

const (
	open       = "open"
	cancelling = "cancelling"
)

var terminal = []string{"done", "failed", "cancelled"}

func isTerminal(status string) bool { return slices.Contains(terminal, status) }

// jobStep is the model of submit, cancel and the last look, for one key.
func jobStep(s jobState, o op) []jobState {
	switch o.What {
	case "submit":
		return submitStep(s, o)
	case "cancel":
		return cancelStep(s, o)
	case "final":
		return finalStep(s, o)
	}
	return nil
}

func submitStep(s jobState, o op) []jobState {
	made := jobState{Job: something, Phase: open}
	switch {
	case o.Result == refuse:
		return []jobState{s}
	case o.Result == unknown && s.Job == "":
		return []jobState{s, made}
	case o.Result == unknown:
		return []jobState{s}
	case s.Job == "" && !o.Existed:
		return []jobState{{Job: o.Job, Phase: open}}
	case s.Job == something && o.Existed, s.Job == o.Job && o.Existed:
		return []jobState{{Job: o.Job, Phase: s.Phase}}
	}
	return nil // another job under the same key, or one that is said to have been there and was not
}

func cancelStep(s jobState, o op) []jobState {
	if o.Result == refuse {
		return []jobState{s} // a node that is behind does not know the job yet
	}
	if s.Job == "" {
		return nil // its id is known to the caller, so it was made before
	}
	asked := jobState{Job: s.Job, Phase: cancelling}
	if o.Result == unknown {
		if s.Phase == open {
			return []jobState{s, asked}
		}
		return []jobState{s}
	}
	over := jobState{Job: s.Job, Phase: o.Status}
	switch {
	case isTerminal(s.Phase):
		return only(over, !o.Changed && o.Status == s.Phase)
	case isTerminal(o.Status) && o.Changed:
		return only(over, s.Phase == open && o.Status == "cancelled")
	case isTerminal(o.Status): // it has ended by itself meanwhile
		return []jobState{over}
	}
	return only(asked, o.Changed == (s.Phase == open))
}

func finalStep(s jobState, o op) []jobState {
	if s.Job == "" || o.Job == "" {
		return only(s, s.Job == o.Job)
	}
	if s.Job != something && s.Job != o.Job || isTerminal(s.Phase) && s.Phase != o.Status {
		return nil
	}
	return []jobState{{Job: o.Job, Phase: o.Status}}
}

func only[S any](s S, legal bool) []S {
	if !legal {
		return nil
	}
	return []S{s}
}

// workState is what can be known of a job's lease: the newest epoch that was certainly
// granted by now, and that it was taken from its holder.
type workState struct {
	Epoch   uint64
	Revoked bool
}

// workStep is the model of a job's leases. Grants, expiries and completions are the site's
// own doing, and nobody is told when; but an epoch that somebody saw was granted before, and
// epochs only rise.
func workStep(s workState, o op) []workState {
	up := s
	if o.Epoch > s.Epoch {
		up = workState{Epoch: o.Epoch}
	}
	switch o.What {
	case "granted": // a node's own copy, which may be behind
		return []workState{up}
	case "acts": // its holder does something that is protected: nobody else has it
		return only(up, o.Epoch >= s.Epoch)
	case "revoke":
		taken := workState{Epoch: o.Epoch, Revoked: true}
		legal := o.Epoch > s.Epoch || o.Epoch == s.Epoch && !s.Revoked
		switch {
		case o.Result == refuse || o.Result == unknown && !legal:
			return []workState{s}
		case o.Result == unknown:
			return []workState{s, taken}
		}
		return only(taken, legal)
	case "final": // what was done under an epoch is no result once the epoch was revoked
		return only(up, o.Epoch >= s.Epoch && !(o.Status == "done" && o.Epoch == s.Epoch && s.Revoked))
	}
	return nil
}

// held is one device lease of a person.
type held struct {
	Request string
	Lease   string
	Token   uint64
	Until   int64 // it cannot have expired before, for it was asked for a ttl earlier
}

// deskState is a device: who has it, and who had it last.
type deskState struct {
	Held, Last held
}

// deskStep is the model of lease and release, for one device.
func deskStep(s deskState, o op) []deskState {
	if o.What == "release" {
		return releaseStep(s, o)
	}
	next := held{Request: o.Key, Lease: o.Lease, Token: o.Token, Until: o.Call + int64(o.TTL)}
	free := s.Held.Lease == "" || s.Held.Until <= o.Return
	took := deskState{Held: next, Last: s.Held}
	if s.Held.Lease == "" {
		took.Last = s.Last
	}
	switch o.Result {
	case refuse:
		return []deskState{s} // it is leased, being cleaned, or its host is away
	case unknown:
		out := []deskState{s}
		if free && s.Held.Request != o.Key && s.Last.Request != o.Key {
			took.Held.Lease = something
			out = append(out, took)
		}
		return out
	}
	if again, yes := s.again(o); yes {
		return again
	}
	if !free || o.Token <= max(s.Held.Token, s.Last.Token) {
		return nil // two holders, or a token that does not fence the one before
	}
	return []deskState{took}
}

// again is the answer to a request that was granted before: the same lease.
func (s deskState) again(o op) ([]deskState, bool) {
	for _, h := range []*held{&s.Held, &s.Last} {
		if h.Request != o.Key || h.Lease == "" {
			continue
		}
		if h.Lease == something {
			h.Lease, h.Token = o.Lease, o.Token
		}
		if h.Lease != o.Lease || h.Token != o.Token {
			return nil, true
		}
		return []deskState{s}, true
	}
	return nil, false
}

func releaseStep(s deskState, o op) []deskState {
	mine := s.Held.Lease == o.Lease
	freed := deskState{Last: s.Held}
	switch o.Result {
	case refuse:
		if mine && o.Return < s.Held.Until {
			return nil // it is the current lease, and could be given back
		}
		return []deskState{s}
	case unknown:
		if mine {
			return []deskState{s, freed}
		}
		return []deskState{s}
	}
	if mine {
		return []deskState{freed}
	}
	if s.Last.Lease == o.Lease {
		return []deskState{s}
	}
	return nil // released what nobody had
}

// never is the return of a call that got no answer.
const never = math.MaxInt64

// operations are those of the history that a key selects, as porcupine wants them.
func operations(ops []op, keep func(op) bool) []porcupine.Operation {
	var out []porcupine.Operation
	for _, o := range ops {
		if !keep(o) {
			continue
		}
		if o.Result == unknown {
			o.Return = never
		}
		out = append(out, porcupine.Operation{ClientId: o.Client, Input: o, Output: o.Result, Call: o.Call, Return: o.Return})
	}
	return out
}

func model[S comparable](step func(S, op) []S) porcupine.Model {
	var zero S
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{zero} },
		Step: func(s, in, _ any) []any {
			var out []any
			for _, n := range step(s.(S), in.(op)) {
				out = append(out, n)
			}
			return out
		},
		Equal:             func(a, b any) bool { return a.(S) == b.(S) },
		DescribeOperation: func(in, _ any) string { return describe(in.(op)) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return nm.ToModel()
}

func describe(o op) string {
	return fmt.Sprintf("%s %s%s at %s: %s %s%s %s existed=%v changed=%v token=%d epoch=%d", o.What, o.Key, o.Device, o.Node, o.Result, o.Job, o.Lease, o.Status, o.Existed, o.Changed, o.Token, o.Epoch)
}

// aboutWork tells the calls that concern leases of jobs.
func aboutWork(o op) bool { return o.What == "granted" || o.What == "revoke" }

// leasesOfJobs judges each job's leases: what clients saw of them and did to them, together
// with what protected work did to the world outside.
func leasesOfJobs(e evidence) (wrong []string) {
	jobOf, jobs := map[string]string{}, map[string]bool{}
	for _, o := range e.Ops {
		if o.What == "submit" && o.Result == ok {
			jobOf[o.Key] = o.Job
		}
		if aboutWork(o) {
			jobs[o.Job] = true
		}
	}
	ops := slices.Clone(e.Ops)
	for _, b := range e.Beats {
		if id := jobOf[b.Key]; b.Class == protectedWork && jobs[id] {
			ops = append(ops, op{Client: clients + 1, What: "acts", Key: b.Key, Job: id, Epoch: uint64(epochOf(b.Epoch)), Call: b.After, Return: b.By, Result: ok})
		}
	}
	for id := range jobs {
		of := operations(ops, func(o op) bool { return o.Job == id && (aboutWork(o) || o.What == "acts" || o.What == "final") })
		wrong = append(wrong, judge(model(workStep), "the leases of job "+id, of)...)
	}
	slices.Sort(wrong)
	return wrong
}

// judgeBound is how long the search for an order of one key's calls may take.
const judgeBound = 20 * time.Second

// linear judges each key's and each device's calls.
func linear(e evidence) []string {
	keyOf := map[string]string{}
	for _, o := range e.Ops {
		if o.What == "submit" && o.Job != "" {
			keyOf[o.Job] = o.Key
		}
	}
	keys, devices := map[string]bool{}, map[string]bool{}
	for i, o := range e.Ops {
		switch o.What {
		case "cancel":
			e.Ops[i].Key = keyOf[o.Job]
		case "lease", "release":
			devices[o.Device] = true
		}
		if e.Ops[i].Key != "" && !devices[o.Device] {
			keys[e.Ops[i].Key] = true
		}
	}
	var wrong []string
	for k := range keys {
		ops := operations(e.Ops, func(o op) bool { return o.Key == k && o.Device == "" && !aboutWork(o) })
		wrong = append(wrong, judge(model(jobStep), "the calls for key "+k, ops)...)
	}
	for d := range devices {
		ops := operations(e.Ops, func(o op) bool { return o.Device == d })
		wrong = append(wrong, judge(model(deskStep), "the leases of "+d, ops)...)
	}
	slices.Sort(wrong)
	return wrong
}

func judge(mod porcupine.Model, what string, ops []porcupine.Operation) []string {
	switch porcupine.CheckOperationsTimeout(mod, ops, judgeBound) {
	case porcupine.Illegal:
		text := what + " have no order that explains them:"
		for _, o := range ops {
			in := o.Input.(op)
			text += fmt.Sprintf("\n    %9.3f–%9.3f s client %d  %s %s", float64(in.Call)/1e9, float64(in.Return)/1e9, in.Client, describe(in), in.Err)
		}
		return []string{text}
	case porcupine.Unknown:
		return []string{what + ": no verdict within " + judgeBound.String()}
	}
	return nil
}
