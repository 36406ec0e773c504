package partition

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// op is one call of a client: what was asked, of whom, and what came of it. Times are
// of one clock, since the run began.
type op struct {
	Client int    `json:"client"`
	What   string `json:"what"` // submit, cancel, lease, release, granted, acts, revoke, final
	Node   string `json:"node"`
	Call   int64  `json:"call"`   // nanoseconds
	Return int64  `json:"return"` // likewise

	Key    string        `json:"key,omitempty"` // of a submit; of a lease its request
	Device string        `json:"device,omitempty"`
	TTL    time.Duration `json:"ttl,omitempty"`

	Result  result `json:"result"`
	Job     string `json:"job,omitempty"`
	Existed bool   `json:"existed,omitempty"`
	Changed bool   `json:"changed,omitempty"`
	Status  string `json:"status,omitempty"`
	Lease   string `json:"lease,omitempty"`
	Token   uint64 `json:"token,omitempty"`
	Epoch   uint64 `json:"epoch,omitempty"` // of a job's lease; of a final look: that of its end
	Err     string `json:"err,omitempty"`
}

type result string

const (
	ok      result = "ok"
	refuse  result = "refused" // an answer: it was not done
	unknown result = "unknown" // it may have been done, or still be
)

// resultOf tells an answer from silence. What says why it was not done is an answer.
func resultOf(err error) result {
	switch forgeyard.KindOf(err) {
	case forgeyard.Invalid, forgeyard.NotFound, forgeyard.Conflict, forgeyard.Stale, forgeyard.Denied, forgeyard.Limit, forgeyard.NoSpace:
		return refuse
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return refuse // there was nobody to ask
	}
	if err == nil {
		return ok
	}
	return unknown
}

// seen is one look at a job.
type seen struct {
	At     int64  `json:"at"`
	Node   string `json:"node"`
	Job    string `json:"job"`
	Status string `json:"status"`
	Epoch  uint64 `json:"epoch"`
}

// ended is a job as one node has it when all is over.
type ended struct {
	Node      string   `json:"node"`
	Job       string   `json:"job"`
	Key       string   `json:"key"`
	Grant     string   `json:"grant,omitempty"`
	Status    string   `json:"status"`
	Category  string   `json:"category,omitempty"` // of a failure
	Epoch     uint64   `json:"epoch"`
	Completed []uint64 `json:"completed"` // epochs whose result was taken as the job's
	Epochs    []uint64 `json:"epochs"`
	Resumed   int      `json:"resumed,omitempty"` // epochs that went on from a checkpoint
	Result    string   `json:"result,omitempty"`  // what its output says
	Outputs   string   `json:"outputs,omitempty"`
}

// delegated is what the central daemon has of a job that it gave away.
type delegated struct {
	Grant    string `json:"grant"`
	Status   string `json:"status"`
	Outcomes int32  `json:"outcomes"`
	Record   uint64 `json:"record"`
}

// uplinkEnd is what the two ends of the uplink have when all is over.
type uplinkEnd struct {
	Granted  []string    `json:"granted"` // what was acknowledged to whoever delegated
	Jobs     []delegated `json:"jobs"`
	Audit    []uint64    `json:"audit"`   // numbers of the daemon's audit entries
	Taken    []uint64    `json:"taken"`   // numbers of the records it took, in order
	Records  uint64      `json:"records"` // as it counts them
	Acked    uint64      `json:"acked"`   // as the site has it
	Pending  int64       `json:"pending"`
	Expected bool        `json:"expected"` // there is a central daemon
}

// evidence is all that was seen of a run.
type evidence struct {
	Shape   shape     `json:"shape"`
	Done    []string  `json:"done"` // what was done to the machines, and when
	Ops     []op      `json:"ops"`
	Seen    []seen    `json:"seen"`
	Beats   []beat    `json:"beats"`
	Touches [][]touch `json:"touches"` // by device
	Ended   []ended   `json:"ended"`
	Uplink  uplinkEnd `json:"uplink"`
	Stuck   []string  `json:"stuck"` // what did not come to its end in time
}

// recorder collects what clients see.
type recorder struct {
	began time.Time

	mu sync.Mutex
	e  evidence
}

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *recorder) op(o op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.e.Ops = append(r.e.Ops, o)
}

func (r *recorder) look(s seen) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.e.Seen = append(r.e.Seen, s)
}

func (r *recorder) granted(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.e.Uplink.Granted = append(r.e.Uplink.Granted, id)
}

func (r *recorder) did(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.e.Done = append(r.e.Done, what)
}

// save writes evidence where -history reads it.
func (e evidence) save(dir string) (string, error) {
	b, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		return "", err
	}
	p := filepath.Join(dir, "history.json")
	return p, os.WriteFile(p, b, 0o644)
}

func load(path string) (e evidence, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	return e, err
}
