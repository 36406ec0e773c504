// Package control answers people and programs: the control API on the unix socket
// and on loopback.
//
// It shows the site's state and proposes what was asked for; it decides nothing.
// Every view comes from one immutable state, so its parts agree. A write returns when
// the log has answered it, and this node's own copy has it.
package control

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// Node is what the services need of the node they speak for.
type Node interface {
	Site() *site.State
	Changed() <-chan struct{}
	Propose(ctx context.Context, by string, body site.Body) (site.Reply, error)
	Wall() time.Time
	NewID() string

	Status(ctx context.Context) *forgeyardv1.NodeStatus
	Doctor(ctx context.Context) *forgeyardv1.DoctorResponse
	Members() []*forgeyardv1.Member
	Quorum(ctx context.Context) bool
	// Outvoted waits until the group goes on without a member's vote.
	Outvoted(ctx context.Context, r forgeyard.RunnerID) error
	UplinkUsed(ctx context.Context) (used time.Duration, lastError string, lastContact time.Time)
	Explain(ctx context.Context, id forgeyard.JobID) (held string, all []*forgeyardv1.Job_Candidate, err error)
	// Heard is the last heartbeat of a runner, as the leader heard it. NotFound: none.
	Heard(ctx context.Context, r forgeyard.RunnerID) (*forgeyardv1.Heartbeat, error)
	Drain(ctx context.Context, r *forgeyardv1.DrainRequest) (*forgeyardv1.DrainResponse, error)
	Undrain(ctx context.Context) (*forgeyardv1.ResumeResponse, error)
	// Cleanup removes what ended work left here; dry: it only says what it would remove. kept:
	// what is kept for a person too.
	Cleanup(ctx context.Context, dry, kept bool) (*forgeyardv1.CleanupResponse, error)
	// Current waits until this node's copy of the log has all that was committed when it was
	// called, and returns the term of the leader that vouched for it.
	Current(ctx context.Context) (term uint64, err error)
	Recover(ctx context.Context, by string, force bool) (*forgeyardv1.RecoverResponse, error)
	// Identity is who this node is, and the version of its program.
	Identity() (forgeyard.RunnerID, string)
	NewToken(ctx context.Context, ttl time.Duration, uses int, mayVote, approve bool) (*forgeyardv1.Token, error)
	ConnectUplink(ctx context.Context, ticket string) error
	// Log yields the frames of a job's log after a sequence number; with follow it goes
	// on until the job has ended and all was sent.
	Log(ctx context.Context, j forgeyard.JobID, after uint64, follow bool, send func(*forgeyardv1.LogFrame) error) error
	Console(ctx context.Context, d forgeyard.DeviceID, token uint64, rw ConsoleStream) error

	Store() cas.Store
	// Unseal opens what was sealed for this node's key. Denied: it was not.
	Unseal(sealed []byte) ([]byte, error)
	// Gone says when a stored object went and why; empty when that is not known.
	Gone(d forgeyard.Digest) string
	// Verify reads all that is stored, after a repair of the index if that is asked for.
	Verify(ctx context.Context, index bool, rate int64, told func(*forgeyardv1.VerifyResponse)) (*forgeyardv1.VerifyResponse, error)
	// EvictLayers removes trees that are kept for reuse and tells how many bytes came free.
	EvictLayers() int64
	// Bring makes a blob or a whole tree complete in the local store, from peers.
	Bring(ctx context.Context, ref cas.Ref, tree bool) error
	// Holders are the other nodes that say they have it, Acknowledged those of which the log
	// says that they acknowledged a durable copy.
	Holders(ctx context.Context, d forgeyard.Digest) []string
	Acknowledged(d forgeyard.Digest) []string
	// SignBundle signs a bundle's index as this member; BundleSigner says which member did,
	// at a time at which it was one.
	SiteID() forgeyard.SiteID
	SignBundle(index []byte) ([]byte, error)
	BundleSigner(of forgeyard.SiteID, index, signature []byte, made time.Time) (forgeyard.RunnerID, error)
	// SignEnvelope signs with this node's key, CheckEnvelope says why the key of that name has not.
	SignEnvelope(data []byte) (keyID string, sig []byte, err error)
	CheckEnvelope(keyID string, data, sig []byte) error
	UploadLimit() int64

	// The children of this daemon speak for their attempt: see OwnWorkService.
	OwnTask(a forgeyard.AttemptID) (*forgeyardv1.OwnTask, error)
	OwnReport(a forgeyard.AttemptID, h job.Happening) error
	OwnVerify(ctx context.Context, a forgeyard.AttemptID, d forgeyard.Digest, tree bool) (*forgeyardv1.OwnVerifyResponse, error)
	OwnGarden(ctx context.Context, a forgeyard.AttemptID, action string) (*forgeyardv1.OwnGardenResponse, error)
	Warn(msg string, args ...any)
}

// ConsoleStream carries bytes of a console in both directions.
type ConsoleStream interface {
	Send(data []byte) error
	Receive() ([]byte, error)
}

// Access is what the callers of a Handler may do.
type Access bool

// ReadOnly is for loopback HTTP, which any process of the machine can reach: it shows,
// and changes nothing. Full is for the unix socket, which belongs to one account.
const (
	ReadOnly Access = false
	Full     Access = true
)

// reads are the procedures that change nothing.
var reads = map[string]bool{
	"Status": true, "Doctor": true, "Members": true, "Events": true, "ListTokens": true, "GetConfig": true, "List": true, "ListLeases": true, "Show": true,
	"Log": true, "Attach": true, "Stat": true, "Usage": true,
	"ListNames": true, "ListSecrets": true,
}

// gate refuses what the access does not cover.
type gate struct{ access Access }

func (g gate) check(procedure string) error {
	if g.access == Full || reads[procedure[strings.LastIndexByte(procedure, '/')+1:]] {
		return nil
	}
	return wire.ToConnect(forgeyard.Errorf("http", forgeyard.Denied, "%s changes something, and this address only shows", procedure).WithHint("use the control socket: leave --addr out"))
}

func (g gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := g.check(r.Spec().Procedure); err != nil {
			return nil, err
		}
		return next(ctx, r)
	}
}

func (g gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (g gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		if err := g.check(c.Spec().Procedure); err != nil {
			return err
		}
		return next(ctx, c)
	}
}

// Handler serves all services.
func Handler(n Node, access Access) http.Handler {
	mux := http.NewServeMux()
	opt := connect.WithHandlerOptions(connect.WithInterceptors(gate{access}, wire.Interceptor{}), connect.WithReadMaxBytes(maxMessage))
	mux.Handle(forgeyardv1connect.NewNodeServiceHandler(nodeService{n}, opt))
	mux.Handle(forgeyardv1connect.NewSiteServiceHandler(siteService{n}, opt))
	mux.Handle(forgeyardv1connect.NewJobServiceHandler(jobService{n}, opt))
	mux.Handle(forgeyardv1connect.NewCheckpointServiceHandler(checkpointService{n}, opt))
	mux.Handle(forgeyardv1connect.NewRunServiceHandler(runService{n}, opt))
	mux.Handle(forgeyardv1connect.NewContentServiceHandler(contentService{n}, opt))
	mux.Handle(forgeyardv1connect.NewOwnWorkServiceHandler(ownWork{n}, opt))
	mux.Handle(forgeyardv1connect.NewBundleServiceHandler(bundleService{n}, opt))
	mux.Handle(forgeyardv1connect.NewDeviceServiceHandler(deviceService{n}, opt))
	mux.Handle(forgeyardv1connect.NewUplinkServiceHandler(uplinkService{n}, opt))
	return mux
}

// maxMessage bounds one message of a caller: a chunk of an upload, or a spec.
const maxMessage = 4 << 20

// person is who asks, for the audit. The unix socket belongs to the node's own
// account, so whoever may write to it is its operator.
const person = "operator"

// propose proposes in the caller's name and returns the command's own error.
func propose(ctx context.Context, n Node, body site.Body) (site.Reply, error) {
	r, err := n.Propose(ctx, person, body)
	if err != nil {
		return r, err
	}
	return r, r.Err()
}

// lookUp finds a job in this node's copy of the log. What is not there may only not have come
// yet, and "not found" would be a lie: it is said when the copy has all that was committed,
// else that nobody can say.
func lookUp(ctx context.Context, n Node, word string, find func(*site.State, string) (site.Job, error)) (site.Job, error) {
	j, err := find(n.Site(), word)
	if forgeyard.KindOf(err) != forgeyard.NotFound {
		return j, err
	}
	if _, behind := n.Current(ctx); behind != nil {
		return j, forgeyard.Errorf("job", forgeyard.Unavailable, "%q is not in this node's copy of the log, which may be behind: %v", forgeyard.Clip(word, 40), behind).
			WithHint("ask another node, or look at this one: forgeyard-node doctor")
	}
	return find(n.Site(), word)
}

// findJob finds a job by its id, its run's id, or the last letters of either, if
// they name one alone.
func findJob(s *site.State, word string) (site.Job, error) {
	word = strings.ToUpper(strings.TrimSpace(word))
	if j, ok := s.Jobs.Get(forgeyard.JobID(word)); ok {
		return j, nil
	}
	if r, ok := s.Runs.Get(forgeyard.RunID(word)); ok {
		j, _ := s.Jobs.Get(r.Job)
		return j, nil
	}
	var found []site.Job
	if len(word) >= 4 {
		for id, j := range s.Jobs.All() {
			if strings.HasSuffix(string(id), word) || strings.HasSuffix(string(j.Run), word) {
				found = append(found, j)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return site.Job{}, forgeyard.Errorf("job", forgeyard.NotFound, "no job or run %q", forgeyard.Clip(word, 40)).WithHint("forgeyard-node job list --all shows them")
	}
	return site.Job{}, forgeyard.Errorf("job", forgeyard.Conflict, "%q names %d jobs", word, len(found)).WithHint("give more of its letters")
}

func findMember(s *site.State, word string) (site.Member, error) {
	for id, m := range s.Members.All() {
		if string(id) == word || (m.Name == word && !m.Removed) {
			return m, nil
		}
	}
	return site.Member{}, forgeyard.Errorf("member", forgeyard.NotFound, "no member %q", forgeyard.Clip(word, 60)).WithHint("forgeyard-node site members shows them")
}

func checkStatus(word string) error {
	switch job.Status(word) {
	case "", job.Queued, job.Leased, job.Running, job.Suspended, job.Unknown, job.Done, job.Failed, job.Cancelled:
		return nil
	}
	return forgeyard.Errorf("list", forgeyard.Invalid, "status %q is not one of queued, leased, running, suspended, unknown, done, failed, cancelled", forgeyard.Clip(word, 40))
}
