package control

import (
	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// shownEvents bounds the events that a job is shown with: `run attach` has all of the run,
// `site events --kind lease` all of the leases.
const shownEvents = 24

// jobEvents are the last events of a job: those of its leases and those of its run, in one
// list. Each of the two keeps its order; between them the log's times decide.
func jobEvents(s *site.State, j site.Job) []*forgeyardv1.Job_Event {
	leases, run := s.LeaseEvents(j.ID), lastOf(s.RunEvents(j.Run, 0), shownEvents)
	var out []*forgeyardv1.Job_Event
	for len(leases) > 0 || len(run) > 0 {
		if len(run) == 0 || len(leases) > 0 && leaseFirst(leases[0], run[0]) {
			e := leases[0]
			leases = leases[1:]
			out = append(out, &forgeyardv1.Job_Event{At: stamp(e.At), Kind: e.Kind, Text: e.Text})
			continue
		}
		e := Event(j.Run, run[0])
		run = run[1:]
		out = append(out, &forgeyardv1.Job_Event{At: e.At, Kind: e.Kind, Text: e.Message, Seq: e.Seq, Type: e.Type})
	}
	return lastOf(out, shownEvents)
}

// leaseFirst orders two events. Of one moment the lease's comes first, but not before the first
// of the run, nor before what an execution tells along with its end.
func leaseFirst(l site.SiteEvent, e job.Event) bool {
	told := e.Kind == job.EventTool || e.Kind == job.EventOutput
	return l.At < e.At || l.At == e.At && !told && e.Seq > 1
}

func lastOf[T any](all []T, most int) []T { return all[max(0, len(all)-most):] }

// askedBack is why the holder of a live lease is asked to give it back, or nothing.
func askedBack(j site.Job) string {
	if !j.Lease.Live() || j.StopKind == "" {
		return ""
	}
	if j.StopReason == "" {
		return j.StopKind
	}
	return forgeyard.Clip(j.StopReason, job.MaxEventMessage)
}
