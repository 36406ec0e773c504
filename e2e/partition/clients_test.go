package partition

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/localsite"
	"github.com/forgeyard/forgeyard-node/job"
)

const (
	clients    = 4
	patience   = 5 * time.Second // of a client with one call
	maxOpen    = 10              // jobs that are open before no new ones are submitted
	deskTTL    = 8 * time.Second // of a person's lease: some are never given back
	idempotent = "k"
)

// crowd is the clients of a run, and what they know together.
type crowd struct {
	w       *world
	rec     *recorder
	central localsite.CentralAPI // nil: there is none
	seed    uint64

	mu   sync.Mutex
	next int
	jobs map[string]string // key → job, where one was acknowledged
	over map[string]bool   // jobs that somebody saw ended
	keys []string          // of all that were ever tried
	took map[string]bool   // jobs whose lease somebody has tried to revoke
	spec map[string][]byte
}

func newCrowd(w *world, rec *recorder, seed uint64) *crowd {
	c := &crowd{w: w, rec: rec, seed: seed, jobs: map[string]string{}, over: map[string]bool{}, took: map[string]bool{}, spec: map[string][]byte{}}
	if w.site.Central != nil {
		c.central = w.site.Central.API
	}
	return c
}

// run lets the clients call until the context ends, and returns when all have.
func (c *crowd) run(ctx context.Context) {
	var g sync.WaitGroup
	for i := range clients {
		g.Go(func() {
			x := client{crowd: c, id: i, r: rand.New(rand.NewPCG(c.seed, uint64(100+i)))}
			for ctx.Err() == nil {
				x.step(ctx)
				pause(ctx, time.Duration(50+x.r.IntN(250))*time.Millisecond)
			}
		})
	}
	g.Wait()
}

// client is one of the crowd. What it does next is drawn from the seed; what it gets
// is not.
type client struct {
	*crowd
	id int
	r  *rand.Rand
}

func (x *client) node() *localsite.Node { return x.w.site.Nodes[x.r.IntN(len(x.w.site.Nodes))] }

func (x *client) step(ctx context.Context) {
	switch n := x.r.IntN(20); {
	case n < 6:
		x.submitNew(ctx)
	case n < 8:
		x.resubmit(ctx)
	case n < 9:
		x.cancel(ctx)
	case n < 11:
		x.desk(ctx)
	case n < 12 && x.central != nil:
		x.delegate(ctx)
	case n < 14:
		x.leases(ctx)
	default:
		x.look(ctx)
	}
}

// call runs one call, and fills in its times and how it ended.
func (x *client) call(ctx context.Context, o op, f func(context.Context, *op) error) op {
	o.Client, o.Call = x.id, x.rec.now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience) // what was begun is waited for
	defer cancel()
	err := f(ctx, &o)
	o.Return, o.Result = x.rec.now(), resultOf(err)
	if err != nil {
		o.Err = err.Error()
	}
	x.rec.op(o)
	return o
}

func (x *client) submitNew(ctx context.Context) {
	key, spec, ok := x.draw()
	if !ok {
		x.look(ctx)
		return
	}
	for range 3 { // who hears nothing asks again, elsewhere
		if x.submit(ctx, x.node(), key, spec).Result != unknown || ctx.Err() != nil || x.r.IntN(3) == 0 {
			return
		}
	}
}

// draw makes a new job, unless enough are open.
func (x *client) draw() (key string, spec []byte, ok bool) {
	file := x.file()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.jobs)-len(x.over) >= maxOpen {
		return "", nil, false
	}
	x.next++
	key = fmt.Sprintf("%s%d", idempotent, x.next)
	spec, err := specOf(file, key)
	if err != nil {
		panic(err) // the files of this package are valid
	}
	x.keys, x.spec[key] = append(x.keys, key), spec
	return key, spec, true
}

func (x *client) submit(ctx context.Context, n *localsite.Node, key string, spec []byte) op {
	o := x.call(ctx, op{What: "submit", Node: n.Name, Key: key}, func(ctx context.Context, o *op) error {
		r, err := n.API.Job.Submit(ctx, connect.NewRequest(&forgeyardv1.SubmitRequest{Kind: "build", Spec: spec, Title: key, IdempotencyKey: key}))
		if err == nil {
			o.Job, o.Existed = r.Msg.JobIds[0], r.Msg.Existed
		}
		return err
	})
	if o.Result == ok {
		x.mu.Lock()
		x.jobs[key] = o.Job
		x.mu.Unlock()
	}
	return o
}

// resubmit asks for a job again that somebody has asked for before.
func (x *client) resubmit(ctx context.Context) {
	x.mu.Lock()
	var key string
	var spec []byte
	if len(x.keys) > 0 {
		key = x.keys[x.r.IntN(len(x.keys))]
		spec = x.spec[key]
	}
	x.mu.Unlock()
	if key != "" {
		x.submit(ctx, x.node(), key, spec)
	}
}

// known is a job that was acknowledged; most often an open one.
func (x *client) known() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []string
	for _, k := range slices.Sorted(maps.Keys(x.jobs)) {
		if id := x.jobs[k]; !x.over[id] || x.r.IntN(10) == 0 {
			all = append(all, id)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return all[x.r.IntN(len(all))]
}

func (x *client) cancel(ctx context.Context) {
	id, n := x.known(), x.node()
	if id == "" {
		return
	}
	x.call(ctx, op{What: "cancel", Node: n.Name, Job: id}, func(ctx context.Context, o *op) error {
		r, err := n.API.Job.Cancel(ctx, connect.NewRequest(&forgeyardv1.CancelJobRequest{JobId: id}))
		if err == nil {
			o.Changed, o.Status = r.Msg.Changed, r.Msg.Status
		}
		return err
	})
}

// leases looks who holds what as a node has it, which may be behind, and takes one lease
// from its holder; of one job at most once, or it would never end.
func (x *client) leases(ctx context.Context) {
	n := x.node()
	at := x.rec.now()
	list, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := n.API.Job.ListLeases(list, connect.NewRequest(&forgeyardv1.ListLeasesRequest{}))
	if err != nil {
		return // it does not run
	}
	back := x.rec.now()
	var free []op
	for _, l := range r.Msg.Leases {
		o := op{Client: x.id, What: "granted", Node: n.Name, Job: l.JobId, Lease: l.LeaseId, Epoch: l.Epoch, Call: at, Return: back, Result: ok}
		x.rec.op(o)
		x.mu.Lock()
		if !x.took[l.JobId] {
			free = append(free, o)
		}
		x.mu.Unlock()
	}
	if len(free) == 0 || x.r.IntN(3) > 0 {
		return
	}
	o := free[x.r.IntN(len(free))]
	x.mu.Lock()
	x.took[o.Job] = true
	x.mu.Unlock()
	o.What = "revoke"
	for range 2 { // who hears nothing asks again, elsewhere
		o.Node, o.Err = n.Name, ""
		if x.call(ctx, o, func(ctx context.Context, o *op) error {
			_, err := n.API.Job.RevokeLease(ctx, connect.NewRequest(&forgeyardv1.RevokeLeaseRequest{Lease: o.Lease, Reason: "a client wants it"}))
			return err
		}).Result != unknown {
			return
		}
		n = x.node()
	}
}

func (x *client) look(ctx context.Context) {
	id, n := x.known(), x.node()
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	j, err := n.Job(ctx, id)
	if err != nil {
		return // it does not run, or is behind
	}
	x.rec.look(seen{At: x.rec.now(), Node: n.Name, Job: id, Status: j.Status, Epoch: j.Epoch})
	if isTerminal(j.Status) {
		x.mu.Lock()
		x.over[id] = true
		x.mu.Unlock()
	}
}

// desk leases the people's device, touches it for a while, and gives it back; or not.
func (x *client) desk(ctx context.Context) {
	request := fmt.Sprintf("r%d-%d", x.id, x.r.Int64())
	var o op
	for range 2 {
		n := x.node()
		o = x.call(ctx, op{What: "lease", Node: n.Name, Key: request, Device: peoplesDevice, TTL: deskTTL}, func(ctx context.Context, o *op) error {
			r, err := n.API.Device.Lease(ctx, connect.NewRequest(&forgeyardv1.LeaseDeviceRequest{DeviceId: peoplesDevice, Ttl: durationpb.New(deskTTL), Holder: fmt.Sprint("client", x.id), RequestId: request}))
			if err == nil {
				o.Lease, o.Token = r.Msg.LeaseId, r.Msg.Token
			}
			return err
		})
		if o.Result != unknown {
			break
		}
	}
	if o.Result != ok {
		return
	}
	x.touch(ctx, o.Lease)
	if x.r.IntN(4) == 0 {
		return // forgotten: it expires
	}
	for range 2 {
		n := x.node()
		r := x.call(ctx, op{What: "release", Node: n.Name, Device: peoplesDevice, Lease: o.Lease}, func(ctx context.Context, _ *op) error {
			_, err := n.API.Device.Release(ctx, connect.NewRequest(&forgeyardv1.ReleaseDeviceRequest{LeaseId: o.Lease}))
			return err
		})
		if r.Result != unknown {
			return
		}
	}
}

// touch acts on a leased console for some seconds, or for as long as it is let.
func (x *client) touch(ctx context.Context, lease string) {
	long := time.Duration(300+x.r.IntN(2500)) * time.Millisecond
	if x.r.IntN(4) == 0 {
		long = 2 * deskTTL // beyond the end of the lease
	}
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	s := x.node().API.Device.Console(ctx)
	defer func() { _ = s.CloseRequest() }() // the context ends it in any case
	if err := s.Send(&forgeyardv1.ConsoleData{LeaseId: lease}); err != nil {
		return
	}
	go func() {
		for {
			if _, err := s.Receive(); err != nil {
				return
			}
		}
	}()
	for i := 0; pause(ctx, 200*time.Millisecond); i++ {
		if err := s.Send(&forgeyardv1.ConsoleData{Data: fmt.Appendf(nil, "act %s %d\n", lease, i)}); err != nil {
			return // the lease is over, or the way there is
		}
	}
}

// delegate lets the central daemon give the site a job.
func (x *client) delegate(ctx context.Context) {
	x.mu.Lock()
	x.next++
	key := fmt.Sprintf("g%d", x.next)
	x.mu.Unlock()
	spec, err := specOf(plain(x.r.IntN(8), m{"policy": "offline_authorized", "for": "1h"}), key)
	if err != nil {
		panic(err) // as above
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := x.central.Delegate(ctx, connect.NewRequest(&forgeyardv1.DelegateRequest{Site: "lab", Spec: spec, Title: key}))
	if err == nil {
		x.rec.granted(r.Msg.GrantId)
	}
}

// file draws a job.
func (x *client) file() m {
	long := 1 + x.r.IntN(12)
	policy := []m{{"policy": "continuous"}, {"policy": "grace", "for": "2s"}, {"policy": "offline_authorized", "for": "12s"}}[x.r.IntN(3)]
	switch x.r.IntN(8) {
	case 0, 1:
		return plain(long, policy)
	case 6, 7:
		return saving(long, policy)
	case 2:
		return outside("free", "none", x.w.side.pipe.Name(), long, policy)
	case 3, 4:
		return outside(protectedWork, "protected", x.w.side.pipe.Name(), long, policy)
	}
	return onDevice(long, policy)
}

const resultScript = `echo "$KEY $FORGEYARD_EPOCH" > result` + "\n"

// base is what all jobs have: little, so that all of them fit on five nodes at once.
func base(script string, policy m) m {
	return m{
		"steps": []m{{"name": "work", "sh": script + resultScript}}, "outputs": []m{{"path": "result"}},
		"resources": m{"cpu": 0.05, "memory": "32MiB", "disk": "1MiB", "pids": 32}, "connectivity": policy,
		"interruption": m{"tolerance": "restartable", "budget": 1000, "retry": "resume-or-restart"},
	}
}

// plain works in a sandbox, in steps of a fifth of a second.
func plain(long int, policy m) m {
	return base(fmt.Sprintf("i=0\nwhile [ $i -lt %d ]; do echo step $i; sleep 0.2; i=$((i+1)); done\n", long), policy)
}

// saving works in steps too, saves after every other one, and goes on from what it saved. What
// it is given must be whole: it fails with anything else, and nothing in it may fail. That holds
// whoever is lost while it is saved, copied or restored.
func saving(long int, policy m) m {
	j := base(fmt.Sprintf(`i=0
if from=$(fyjob restore path); then
  i=$(cat "$from/n")
  [ "$(wc -c < "$from/state")" -eq $((i * 100000)) ] && [ "$(cksum < "$from/state")" = "$(cat "$from/sum")" ] || exit 7
  cp "$from/state" state && chmod u+w state
  fyjob restore ok || :
fi
while [ $i -lt %d ]; do
  echo step $i; sleep 0.2
  head -c 100000 /dev/urandom >> state; i=$((i+1))
  [ $((i %% 2)) -eq 0 ] || continue
  d=$(fyjob ckpt begin) && cp state "$d/state" && echo $i > "$d/n" && cksum < state > "$d/sum" && fyjob ckpt commit "$d" || :
done
`, long), policy)
	j["resources"] = m{"cpu": 0.05, "memory": "32MiB", "disk": "32MiB", "pids": 32}
	j["resume"] = m{"mode": "application", "checkpoint": m{"window": "10s"}}
	return j
}

// outside says each step in the side log.
func outside(class, effects, pipe string, long int, policy m) m {
	j := base(fmt.Sprintf("i=0\nwhile [ $i -lt %d ]; do echo \"%s $KEY $FORGEYARD_EPOCH $i\" > %s; sleep 0.2; i=$((i+1)); done\n", long, class, pipe), policy)
	j["sandbox"], j["effects"] = "process", effects
	return j
}

// onDevice touches the jobs' device, for as long as there is a way to it: its host may be
// lost at any time, and the job is to end all the same.
func onDevice(long int, policy m) m {
	j := base(fmt.Sprintf("exec 3<>\"$FORGEYARD_DEVICE_DUT\"\ni=0\nwhile [ $i -lt %d ]; do echo \"act $KEY/$FORGEYARD_EPOCH $i\" >&3 || break; read -r answer <&3 || break; sleep 0.2; i=$((i+1)); done\n", long), policy)
	j["devices"] = []m{{"kind": "serial", "labels": m{"board": jobsDevice}, "as": "dut"}}
	return j
}

// specOf is the canonical spec of a job under a key.
func specOf(j m, key string) ([]byte, error) {
	j["env"] = m{"KEY": key}
	text, err := yaml.Marshal(m{"version": 1, "kind": "build", "title": key, "job": j})
	if err != nil {
		return nil, err
	}
	f, err := job.ParseFile(key, text, nil)
	if err != nil {
		return nil, err
	}
	s, err := f.Spec(nil)
	if err != nil {
		return nil, err
	}
	return s.Canonical(), nil
}
