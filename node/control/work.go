package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

type jobService struct{ n Node }

func (s jobService) Submit(ctx context.Context, r *connect.Request[forgeyardv1.SubmitRequest]) (*connect.Response[forgeyardv1.SubmitResponse], error) {
	spec, err := job.DecodeSpec(r.Msg.Spec)
	if err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	b := site.Submit{Kind: job.RunKind(r.Msg.Kind), Title: r.Msg.Title, Key: r.Msg.IdempotencyKey, Spec: r.Msg.Spec, SpecID: cas.Sum(r.Msg.Spec), Group: r.Msg.Group, Order: r.Msg.Order}
	if spec.Own() {
		b.Via, _ = s.n.Identity() // whoever uses this socket may read what this node may
	}
	reply, err := propose(ctx, s.n, b)
	if err != nil {
		return nil, err
	}
	out, err := site.Value[site.Submitted](reply)
	if err == nil {
		// The job is committed: what goes wrong from here on is told, and is no failure to submit.
		if kerr := s.keepInputs(ctx, out.Job, spec, r.Msg.Hold); kerr != nil {
			s.n.Warn("the inputs of a job are not pinned", "job", out.Job, "err", kerr)
		}
	}
	return respond(&forgeyardv1.SubmitResponse{RunId: string(out.Run), JobIds: []string{string(out.Job)}, Existed: out.Existed}, err)
}

// keepInputs pins the inputs that are here for as long as the job is open, and ends
// the hold under which they were put.
func (s jobService) keepInputs(ctx context.Context, id forgeyard.JobID, spec job.Spec, hold string) error {
	p := InputPin(id, spec)
	if len(p.Roots)+len(p.Trees) > 0 {
		if err := s.n.Store().Pin(ctx, p); err != nil {
			return err
		}
	}
	if hold == "" {
		return nil
	}
	return s.n.Store().Unpin(ctx, holdOwner(hold))
}

// holdOwner is who keeps what is put under a hold. The prefix keeps a caller's word
// from being the name of a job's pin.
func holdOwner(hold string) string {
	if hold == "" {
		return ""
	}
	return "hold/" + hold
}

// InputPin keeps the inputs of a job.
func InputPin(id forgeyard.JobID, spec job.Spec) cas.Pin {
	p := cas.Pin{Owner: "job/" + string(id) + "/inputs"}
	for _, in := range spec.Inputs {
		if in.Tree {
			p.Trees = append(p.Trees, in.Digest)
		} else {
			p.Roots = append(p.Roots, in.Digest)
		}
	}
	return p
}

func (s jobService) List(ctx context.Context, r *connect.Request[forgeyardv1.ListJobsRequest]) (*connect.Response[forgeyardv1.ListJobsResponse], error) {
	if err := checkStatus(r.Msg.Status); err != nil {
		return nil, err
	}
	used, _, _ := s.n.UplinkUsed(ctx)
	st := s.n.Site()
	out := &forgeyardv1.ListJobsResponse{}
	for _, j := range st.Jobs.All() {
		if r.Msg.Status != "" && string(j.Status) != r.Msg.Status {
			continue
		}
		if r.Msg.Status == "" && !r.Msg.All && j.Status.Terminal() {
			continue
		}
		out.Jobs = append(out.Jobs, Job(st, j, used, false))
	}
	return connect.NewResponse(out), nil
}

func (s jobService) Show(ctx context.Context, r *connect.Request[forgeyardv1.ShowJobRequest]) (*connect.Response[forgeyardv1.Job], error) {
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return nil, err
	}
	used, _, _ := s.n.UplinkUsed(ctx)
	v := Job(s.n.Site(), j, used, true)
	if !j.Status.Terminal() && !j.Lease.Live() {
		if held, all, err := s.n.Explain(ctx, j.ID); err == nil {
			v.HeldBack, v.Candidates = held, all
		} else {
			v.HeldBack = "the leader cannot be asked: " + err.Error()
		}
	}
	v.Holder = s.holder(ctx, j)
	return connect.NewResponse(v), nil
}

// holder is what the holder of a job's lease last said of it; nil where nothing is known.
func (s jobService) holder(ctx context.Context, j site.Job) *forgeyardv1.Job_Holder {
	if !j.Lease.Live() {
		return nil
	}
	h, err := s.n.Heard(ctx, j.Lease.Authority.Runner)
	if err != nil {
		return nil // what the log knows is shown all the same
	}
	for _, a := range h.ActiveAttempts {
		if a.LeaseId == string(j.Lease.Authority.Lease) {
			return &forgeyardv1.Job_Holder{Phase: a.Phase, LastLogSeq: a.LastLogSeq, Ago: h.Ago}
		}
	}
	return nil
}

func (s jobService) Cancel(ctx context.Context, r *connect.Request[forgeyardv1.CancelJobRequest]) (*connect.Response[forgeyardv1.CancelResponse], error) {
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return nil, err
	}
	reply, err := propose(ctx, s.n, site.Cancel{Job: j.ID, Force: r.Msg.Force, Reason: job.CancelReason(r.Msg.Reason), Note: r.Msg.Note, After: r.Msg.AfterCheckpoint, Within: int64(r.Msg.Within.AsDuration())})
	if err != nil {
		return nil, err
	}
	out, err := site.Value[site.Cancelling](reply)
	return respond(&forgeyardv1.CancelResponse{Changed: out.Changed, Status: string(out.Status)}, err)
}

func (s jobService) Ask(ctx context.Context, r *connect.Request[forgeyardv1.AskJobRequest]) (*connect.Response[forgeyardv1.AskJobResponse], error) {
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return nil, err
	}
	reply, err := propose(ctx, s.n, site.Ask{Job: j.ID, What: r.Msg.What, Or: r.Msg.Otherwise})
	if err != nil {
		return nil, err
	}
	out, err := site.Value[site.Asked](reply)
	return respond(&forgeyardv1.AskJobResponse{Changed: out.Changed, Status: string(out.Status), Newest: out.Newest.String()}, err)
}

func (s jobService) Resume(ctx context.Context, r *connect.Request[forgeyardv1.ResumeJobRequest]) (*connect.Response[forgeyardv1.AskJobResponse], error) {
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return nil, err
	}
	b := site.Resume{Job: j.ID}
	if r.Msg.From != "" {
		if b, err = s.chosen(ctx, j, r.Msg); err != nil {
			return nil, err
		}
	}
	reply, err := propose(ctx, s.n, b)
	if err == nil {
		err = reply.Err()
	}
	return respond(&forgeyardv1.AskJobResponse{Changed: true, Status: string(job.Queued)}, err)
}

// chosen is a resume from a checkpoint that a person chose. What is spoilt here is not even
// proposed; what this node cannot judge is judged where it is restored.
func (s jobService) chosen(ctx context.Context, j site.Job, m *forgeyardv1.ResumeJobRequest) (site.Resume, error) {
	ck := checkpointService(s)
	k, of, err := ck.lookUp(ctx, m.From)
	if err != nil {
		return site.Resume{}, err
	}
	b := site.Resume{Job: j.ID, From: k.Manifest, Reason: forgeyard.Clip(strings.TrimSpace(m.Reason), 200)}
	if of.ID != j.ID || k.State != checkpoint.Good {
		return b, nil // the site refuses it, with its reasons
	}
	man, err := ck.manifest(ctx, k.Manifest)
	if err == nil {
		err = ck.spoilt(ctx, man)
	}
	return b, unfit(k.Manifest, err)
}

// unfit is what looking through a checkpoint says against going on from it. What is not here, or
// with nobody who answers, says nothing.
func unfit(id forgeyard.Digest, err error) error {
	switch kind := forgeyard.KindOf(err); {
	case err == nil || kind == forgeyard.NotFound || kind == forgeyard.Unavailable:
		return nil
	case kind == forgeyard.Corrupt:
		return forgeyard.Errorf("resume", forgeyard.Conflict, "checkpoint %s is corrupt in this node's store: %v", id.Short(), err).
			WithHint("choose another, or repair the store: forgeyard-node cas verify")
	}
	return forgeyard.Errorf("resume", forgeyard.Unavailable, "checkpoint %s could not be judged in this node's store: %v", id.Short(), err).
		WithHint("ask again, or ask another node: forgeyard-node checkpoint inspect says what it thinks of it")
}

func (s jobService) Log(ctx context.Context, r *connect.Request[forgeyardv1.LogRequest], out *connect.ServerStream[forgeyardv1.LogFrame]) error {
	switch r.Msg.Stream {
	case "", "stdout", "stderr", "agent", "structured":
	default:
		return forgeyard.Errorf("log", forgeyard.Invalid, "stream %q is not stdout, stderr, agent or structured", forgeyard.Clip(r.Msg.Stream, 40))
	}
	j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
	if err != nil {
		return err
	}
	return s.n.Log(ctx, j.ID, r.Msg.After, r.Msg.Follow, func(f *forgeyardv1.LogFrame) error {
		if r.Msg.Stream != "" && f.Stream != r.Msg.Stream {
			return nil
		}
		return out.Send(f)
	})
}

type runService struct{ n Node }

func (s runService) List(_ context.Context, r *connect.Request[forgeyardv1.ListRunsRequest]) (*connect.Response[forgeyardv1.ListRunsResponse], error) {
	if err := checkStatus(r.Msg.Status); err != nil {
		return nil, err
	}
	st := s.n.Site()
	out := &forgeyardv1.ListRunsResponse{}
	for _, v := range st.Runs.All() {
		if (r.Msg.Kind == "" || string(v.Kind) == r.Msg.Kind) && (r.Msg.Status == "" || string(v.Status) == r.Msg.Status) {
			out.Runs = append(out.Runs, Run(st, v))
		}
	}
	return connect.NewResponse(out), nil
}

func (s runService) find(ctx context.Context, word string) (site.Run, error) {
	j, err := lookUp(ctx, s.n, word, findJob)
	if err != nil {
		return site.Run{}, err
	}
	r, _ := s.n.Site().Runs.Get(j.Run)
	return r, nil
}

func (s runService) Show(ctx context.Context, r *connect.Request[forgeyardv1.ShowRunRequest]) (*connect.Response[forgeyardv1.Run], error) {
	v, err := s.find(ctx, r.Msg.RunId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(Run(s.n.Site(), v)), nil
}

// Attach streams the ordered events until the run is terminal: numbers have no gap
// and never repeat, and the terminal event is the last (RSE).
func (s runService) Attach(ctx context.Context, r *connect.Request[forgeyardv1.AttachRequest], out *connect.ServerStream[forgeyardv1.RunEvent]) error {
	run, err := s.find(ctx, r.Msg.RunId)
	if err != nil {
		return err
	}
	after := r.Msg.After
	for {
		changed := s.n.Changed()
		st := s.n.Site()
		now, ok := st.Runs.Get(run.ID)
		for _, e := range st.RunEvents(run.ID, after) {
			if err := out.Send(Event(run.ID, e)); err != nil {
				return err
			}
			after = e.Seq
		}
		if !ok || now.Status.Terminal() || r.Msg.Snapshot {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (s runService) Suspend(ctx context.Context, r *connect.Request[forgeyardv1.SuspendRunRequest]) (*connect.Response[forgeyardv1.SuspendRunResponse], error) {
	run, err := s.find(ctx, r.Msg.RunId)
	if err != nil {
		return nil, err
	}
	reply, err := propose(ctx, s.n, site.RunSuspend{Run: run.ID, Or: r.Msg.Otherwise})
	if err != nil {
		return nil, err
	}
	out, err := site.Value[site.RunSuspended](reply)
	return respond(&forgeyardv1.SuspendRunResponse{SuspensionId: string(out.ID), Changed: out.Changed, Status: string(out.Status)}, err)
}

func (s runService) Resume(ctx context.Context, r *connect.Request[forgeyardv1.ResumeRunRequest]) (*connect.Response[forgeyardv1.SuspendRunResponse], error) {
	run, err := s.find(ctx, r.Msg.RunId)
	if err != nil {
		return nil, err
	}
	if _, err := propose(ctx, s.n, site.RunResume{Run: run.ID}); err != nil {
		return nil, err
	}
	out := &forgeyardv1.SuspendRunResponse{Changed: true, Status: string(job.Queued)}
	if run.Suspension != nil {
		out.SuspensionId = string(run.Suspension.ID)
	}
	return connect.NewResponse(out), nil
}

type contentService struct{ n Node }

// putReader reads the chunks of an upload.
type putReader struct {
	s   *connect.ClientStream[forgeyardv1.PutRequest]
	buf []byte
}

func (p *putReader) Read(b []byte) (int, error) {
	for len(p.buf) == 0 {
		if !p.s.Receive() {
			if err := p.s.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		p.buf = p.s.Msg().Data
	}
	n := copy(b, p.buf)
	p.buf = p.buf[n:]
	return n, nil
}

func (s contentService) Put(ctx context.Context, st *connect.ClientStream[forgeyardv1.PutRequest]) (*connect.Response[forgeyardv1.PutResponse], error) {
	if !st.Receive() {
		return nil, errors.Join(forgeyard.Errorf("cas put", forgeyard.Invalid, "nothing was sent"), st.Err())
	}
	first := st.Msg()
	o := cas.PutOptions{Size: first.Size, Owner: holdOwner(first.Hold)}
	if first.Expect != "" {
		d, err := forgeyard.ParseDigest(first.Expect)
		if err != nil {
			return nil, err
		}
		o.Expect = d
	}
	limit := s.n.UploadLimit()
	if limit > 0 && first.Size > limit {
		return nil, tooLarge(first.Size, limit)
	}
	r := &limited{r: &putReader{s: st, buf: first.Data}, left: limit, limit: limit}
	ref, err := put(ctx, s.n.Store(), r, o, first.Kind)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.PutResponse{Digest: ref.Digest.String(), Size: ref.Size, Manifest: ref.Manifest.String()}), nil
}

func tooLarge(size, limit int64) error {
	return forgeyard.Errorf("cas put", forgeyard.Limit, "%d bytes are over this site's bound of %d for one object", size, limit).WithHint("raise it with: forgeyard-node site config set upload.limit SIZE")
}

// put stores a blob, or a tree, whose bytes must be a canonical one.
func put(ctx context.Context, store cas.Store, r io.Reader, o cas.PutOptions, kind string) (cas.Ref, error) {
	switch kind {
	case "", "blob":
		return store.Put(ctx, r, o)
	case "tree":
		return putTree(ctx, store, r, o)
	}
	return cas.Ref{}, forgeyard.Errorf("cas put", forgeyard.Invalid, "kind %q is not blob or tree", forgeyard.Clip(kind, 40))
}

// putTree stores the object of a directory: it must decode as one, so that nothing
// that is named as a tree can be anything else.
func putTree(ctx context.Context, store cas.Store, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	b, err := io.ReadAll(io.LimitReader(r, cas.MaxTreeBytes+1))
	if err != nil {
		return cas.Ref{}, err
	}
	if _, err := cas.DecodeTree(b); err != nil {
		return cas.Ref{}, err
	}
	return store.Put(ctx, bytes.NewReader(b), o)
}

// limited ends an upload that is larger than it may be, however large it said it was.
type limited struct {
	r           io.Reader
	left, limit int64
}

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	l.left -= int64(n)
	if l.limit > 0 && l.left < 0 {
		return 0, tooLarge(l.limit-l.left, l.limit)
	}
	return n, err
}

// chunk is how much of an object goes into one message.
const chunk = 256 << 10

func (s contentService) Get(ctx context.Context, r *connect.Request[forgeyardv1.GetRequest], out *connect.ServerStream[forgeyardv1.GetResponse]) error {
	ref, err := parseRef(r.Msg)
	if err != nil {
		return err
	}
	if !s.n.Store().Has(ctx, ref.Digest) {
		if r.Msg.Local {
			return forgeyard.Errorf("cas get", forgeyard.NotFound, "%s is not in this node's store", ref.Digest.Short())
		}
		if err := s.n.Bring(ctx, ref, r.Msg.Kind == "tree"); err != nil {
			return err
		}
	}
	o, err := s.n.Store().Open(ctx, ref.Digest)
	if err != nil {
		return err
	}
	defer o.Close()
	if at := r.Msg.Offset; at < 0 || at > o.Ref().Size {
		return forgeyard.Errorf("cas get", forgeyard.Invalid, "offset %d is not in [0, %d], the size of %s", at, o.Ref().Size, ref.Digest.Short())
	}
	if _, err := o.Seek(r.Msg.Offset, io.SeekStart); err != nil {
		return err
	}
	return sendObject(o, r.Msg.Offset, out)
}

// sendObject sends what is left of an object.
func sendObject(o cas.Object, offset int64, out *connect.ServerStream[forgeyardv1.GetResponse]) error {
	buf := make([]byte, chunk)
	for first := true; ; first = false {
		n, err := io.ReadFull(o, buf)
		if n > 0 || first {
			if serr := out.Send(&forgeyardv1.GetResponse{Data: buf[:n], Size: o.Ref().Size, Offset: offset}); serr != nil {
				return serr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func parseRef(r *forgeyardv1.GetRequest) (cas.Ref, error) {
	d, err := forgeyard.ParseDigest(r.Digest)
	if err != nil {
		return cas.Ref{}, err
	}
	ref := cas.Ref{Digest: d, Size: r.Size}
	if r.Manifest != "" {
		if ref.Manifest, err = forgeyard.ParseDigest(r.Manifest); err != nil {
			return cas.Ref{}, err
		}
	}
	return ref, nil
}

func (s contentService) Stat(ctx context.Context, r *connect.Request[forgeyardv1.StatRequest]) (*connect.Response[forgeyardv1.ObjectInfo], error) {
	d, err := forgeyard.ParseDigest(r.Msg.Digest)
	if err != nil {
		return nil, err
	}
	v := &forgeyardv1.ObjectInfo{Digest: d.String(), Holders: s.n.Holders(ctx, d), Acknowledged: s.n.Acknowledged(d)}
	i, err := s.n.Store().Stat(ctx, d)
	switch {
	case err == nil:
		v.Size, v.Complete, v.Have, v.Stored = i.Ref.Size, i.Complete, i.Have, timestamppb.New(i.Stored)
		v.Manifest = i.Ref.Manifest.String()
		v.Pins = pinInfos(i.Pinned)
	case forgeyard.KindOf(err) == forgeyard.NotFound && len(v.Holders)+len(v.Acknowledged) > 0:
		v.Gone = s.n.Gone(d)
	default:
		return nil, err
	}
	return connect.NewResponse(v), nil
}

func pinInfos(pins []cas.Pin) []*forgeyardv1.PinInfo {
	var out []*forgeyardv1.PinInfo
	for _, p := range pins {
		i := &forgeyardv1.PinInfo{Owner: p.Owner}
		if !p.Expires.IsZero() {
			i.Expires = timestamppb.New(p.Expires)
		}
		out = append(out, i)
	}
	return out
}

// pinOwner is who keeps what a person pinned: each object has a pin of its own, so
// that they end one by one.
func pinOwner(owner string, d forgeyard.Digest) string {
	if owner == "" {
		owner = person
	}
	return "person/" + owner + "/" + d.String()
}

func (s contentService) Pin(ctx context.Context, r *connect.Request[forgeyardv1.PinRequest]) (*connect.Response[forgeyardv1.PinResponse], error) {
	d, err := forgeyard.ParseDigest(r.Msg.Digest)
	if err != nil {
		return nil, err
	}
	p := cas.Pin{Owner: pinOwner(r.Msg.Owner, d)}
	switch r.Msg.Kind {
	case "", "blob":
		p.Roots = []forgeyard.Digest{d}
	case "tree":
		p.Trees = []forgeyard.Digest{d}
	default:
		return nil, forgeyard.Errorf("cas pin", forgeyard.Invalid, "kind %q is not blob or tree", forgeyard.Clip(r.Msg.Kind, 40))
	}
	if t := r.Msg.Ttl.AsDuration(); t > 0 {
		p.Expires = s.n.Wall().Add(t)
	}
	if !s.n.Store().Has(ctx, d) {
		if err := s.n.Bring(ctx, cas.Ref{Digest: d}, r.Msg.Kind == "tree"); err != nil {
			return nil, err
		}
	}
	return respond(&forgeyardv1.PinResponse{}, s.n.Store().Pin(ctx, p))
}

func (s contentService) Unpin(ctx context.Context, r *connect.Request[forgeyardv1.UnpinRequest]) (*connect.Response[forgeyardv1.UnpinResponse], error) {
	if r.Msg.Hold != "" {
		return respond(&forgeyardv1.UnpinResponse{}, s.n.Store().Unpin(ctx, holdOwner(r.Msg.Hold)))
	}
	d, err := forgeyard.ParseDigest(r.Msg.Digest)
	if err != nil {
		return nil, err
	}
	owner := pinOwner(r.Msg.Owner, d)
	pins, err := s.n.Store().Pins(ctx)
	if err != nil {
		return nil, err
	}
	out := &forgeyardv1.UnpinResponse{Changed: slices.ContainsFunc(pins, func(p cas.Pin) bool { return p.Owner == owner })}
	return respond(out, s.n.Store().Unpin(ctx, owner))
}

func (s contentService) Usage(ctx context.Context, _ *connect.Request[forgeyardv1.UsageRequest]) (*connect.Response[forgeyardv1.UsageResponse], error) {
	u, err := s.n.Store().Usage(ctx)
	return respond(&forgeyardv1.UsageResponse{Bytes: u.Bytes, Limit: u.Limit, Pinned: u.Pinned, Objects: u.Objects, DiskFree: u.DiskFree}, err)
}

func (s contentService) GC(ctx context.Context, r *connect.Request[forgeyardv1.GCRequest]) (*connect.Response[forgeyardv1.GCResponse], error) {
	g, err := s.n.Store().GC(ctx, r.Msg.DryRun)
	var trees int64
	if err == nil && !r.Msg.DryRun {
		trees = s.n.EvictLayers()
	}
	return respond(&forgeyardv1.GCResponse{Examined: g.Examined, Removed: g.Removed, Freed: g.Freed + trees, Kept: g.Kept, TreesFreed: trees}, err)
}

func (s contentService) Verify(ctx context.Context, r *connect.Request[forgeyardv1.VerifyRequest], out *connect.ServerStream[forgeyardv1.VerifyResponse]) error {
	if r.Msg.Rate < 0 {
		return forgeyard.Errorf("cas verify", forgeyard.Invalid, "a rate of %d bytes a second is below 0", r.Msg.Rate)
	}
	var serr error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	res, err := s.n.Verify(ctx, r.Msg.Index, r.Msg.Rate, func(v *forgeyardv1.VerifyResponse) {
		if serr == nil {
			if serr = out.Send(v); serr != nil {
				cancel() // nobody listens
			}
		}
	})
	if err = errors.Join(err, serr); err != nil {
		return err
	}
	if r.Msg.Repair {
		res.Healed = s.fetchAgain(ctx, res.Damaged)
	}
	if r.Msg.Repair && r.Msg.Index {
		healed, missing, err := s.fetchKept(ctx)
		if err != nil {
			return err
		}
		res.Healed, res.Missing = append(res.Healed, healed...), missing
	}
	res.Done = true
	return out.Send(res)
}

// fetchAgain asks the peers for what was damaged here, and gives what came.
func (s contentService) fetchAgain(ctx context.Context, damaged []string) (healed []string) {
	for _, name := range damaged {
		d, err := forgeyard.ParseDigest(name)
		if err == nil {
			err = s.n.Bring(ctx, cas.Ref{Digest: d}, false)
		}
		if err != nil {
			s.n.Warn("a damaged object could not be fetched again", "digest", name, "err", err)
			continue
		}
		healed = append(healed, name)
	}
	return healed
}

// fetchKept asks the peers for what a pin keeps and this node lacks: an index that was lost
// took what lay in it along. It gives the roots that came, and those that nobody has.
func (s contentService) fetchKept(ctx context.Context) (healed, missing []string, err error) {
	pins, err := s.n.Store().Pins(ctx)
	if err != nil {
		return nil, nil, err
	}
	seen := map[forgeyard.Digest]bool{}
	bring := func(d forgeyard.Digest, isTree bool) {
		had := s.n.Store().Has(ctx, d)
		if seen[d] || (had && !isTree) {
			return
		}
		seen[d] = true
		switch err := s.n.Bring(ctx, cas.Ref{Digest: d}, isTree); {
		case err != nil:
			s.n.Warn("what a pin keeps is not here and could not be fetched", "digest", d, "err", err)
			missing = append(missing, d.String())
		case !had:
			healed = append(healed, d.String())
		}
	}
	for _, p := range pins {
		for _, d := range p.Trees { // first: a root of both kinds is whole then
			bring(d, true)
		}
		for _, d := range p.Roots {
			bring(d, false)
		}
	}
	return healed, missing, ctx.Err()
}
