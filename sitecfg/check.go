package sitecfg

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
	"github.com/forgeyard/forgeyard-node/job"
)

type fault struct{ path, text string }

type check struct{ faults []fault }

func (c *check) add(path, format string, args ...any) {
	c.faults = append(c.faults, fault{path, fmt.Sprintf(format, args...)})
}

func (c *check) err(path string, err error) {
	if err != nil {
		c.add(path, "%v", err)
	}
}

// finish decodes and then applies the rules that types cannot say; every error
// gets the place of its value.
func finish(doc *strictyaml.Doc, into any, rules func() []fault) error {
	problems := doc.Problems(into)
	if len(problems) == 0 {
		for _, f := range rules() {
			problems = append(problems, doc.Problem(f.path, "%s", f.text))
		}
	}
	return strictyaml.Fail(problems)
}

func explain(op string, faults []fault) error {
	if len(faults) == 0 {
		return nil
	}
	parts := make([]string, len(faults))
	for i, f := range faults {
		parts[i] = f.path + ": " + f.text
	}
	return forgeyard.Errorf(op, forgeyard.Invalid, "%s", strings.Join(parts, "; "))
}

func (c *check) between(at string, n, lo, hi int64, show func(int64) string) {
	if n < lo || n > hi {
		c.add(at, "%s is not in [%s, %s]", show(n), show(lo), show(hi))
	}
}

func (c *check) int(at string, n, lo, hi int) {
	c.between(at, int64(n), int64(lo), int64(hi), func(n int64) string { return strconv.FormatInt(n, 10) })
}

func (c *check) size(at string, n, lo, hi Size) {
	c.between(at, int64(n), int64(lo), int64(hi), func(n int64) string { return Size(n).String() })
}

func (c *check) cpu(at string, n MilliCPU) {
	c.between(at, int64(n), 0, maxMilliCPU, func(n int64) string { return MilliCPU(n).String() })
}

func (c *check) span(at string, d, lo, hi time.Duration) {
	c.between(at, int64(d), int64(lo), int64(hi), func(n int64) string { return time.Duration(n).String() })
}

func (c *check) text(at, s string, limit int) {
	switch {
	case len(s) > limit:
		c.add(at, "has %d bytes; at most %d are allowed", len(s), limit)
	case strings.ContainsRune(s, 0):
		c.add(at, "%q holds a NUL byte", forgeyard.Clip(s, 40))
	}
}

// absolute checks a path of this machine.
func (c *check) absolute(at, p string) {
	switch {
	case len(p) > maxPath:
		c.add(at, "has %d bytes; at most %d are allowed", len(p), maxPath)
	case !path.IsAbs(p):
		c.add(at, "%q is not absolute", p)
	case path.Clean(p) != p:
		c.add(at, "%q is not clean; write %q", p, path.Clean(p))
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' }):
		c.add(at, "%q holds control characters", p)
	}
}

// hostPort checks HOST:PORT. The host may be empty where anyHost says so.
func (c *check) hostPort(at, s string, anyHost bool) {
	host, port, err := SplitHostPort(s)
	switch {
	case err != nil:
		c.add(at, "%v", err)
	case host == "" && !anyHost:
		c.add(at, "%q has no host", s)
	case port == 0 && !anyHost:
		c.add(at, "%q has port 0, which nobody can dial", s)
	}
}

// SplitHostPort reads HOST:PORT: a name, an IPv4 address, an IPv6 address in
// brackets, or nothing for the host; a number below 65536 for the port.
func SplitHostPort(s string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", 0, badAddress(s, "has no port")
	}
	host = s[:i]
	n, err := strconv.ParseUint(s[i+1:], 10, 16)
	if err != nil {
		return "", 0, badAddress(s, "has a port that is not a number below 65536")
	}
	if in, ok := strings.CutPrefix(host, "["); ok {
		in, ok = strings.CutSuffix(in, "]")
		if !ok || !ip6.MatchString(in) || strings.Count(in, ":") < 2 {
			return "", 0, badAddress(s, "has a host in brackets that is not an IPv6 address")
		}
		return in, uint16(n), nil
	}
	if strings.ContainsFunc(host, func(r rune) bool {
		return !(r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) || len(host) > 253 {
		return "", 0, badAddress(s, "has a host that is no name and no address (IPv6 stands in brackets)")
	}
	return host, uint16(n), nil
}

// Loopback reports whether HOST:PORT can be reached from this machine only.
func Loopback(s string) bool {
	host, _, err := SplitHostPort(s)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	return host == "::1" || ip4Loopback.MatchString(host)
}

// The shapes of addresses, enough to see a slip early; whoever binds or dials the
// address has the last word.
var (
	ip6         = regexp.MustCompile(`^[0-9a-fA-F:.]{2,45}$`)
	ip4Loopback = regexp.MustCompile(`^127(\.[0-9]{1,3}){3}$`)
)

func badAddress(s, why string) error {
	return forgeyard.Errorf("", forgeyard.Invalid, "%q %s; HOST:PORT is expected", forgeyard.Clip(s, 80), why)
}

// Validate says everything that is wrong with the node's configuration, or nil.
func (n Node) Validate() error { return explain("node config", n.faults()) }

func (n Node) faults() []fault {
	var c check
	if n.DataDir != "" {
		c.text("data_dir", n.DataDir, maxPath)
	}
	if n.Name != "" {
		c.err("name", job.CheckName(n.Name))
	}
	c.hostPort("listen", n.Listen, true)
	c.hostPort("gossip", n.Gossip, true)
	c.hostPort("http", n.HTTP, true)
	c.cacheAPI(n.CacheAPI)
	c.int("advertise", len(n.Advertise), 0, maxList)
	for i, a := range n.Advertise {
		c.hostPort(fmt.Sprintf("advertise[%d]", i), a, false)
	}
	c.err("labels", job.CheckLabels(n.Labels))
	c.secrets(n.Secrets)
	c.limits(n)
	for i, b := range n.Sandbox.ReadOnlyBinds {
		c.absolute(fmt.Sprintf("sandbox.read_only_binds[%d]", i), b)
	}
	c.int("sandbox.read_only_binds", len(n.Sandbox.ReadOnlyBinds), 0, maxList)
	for i, p := range n.Policy.Ingest {
		c.absolute(fmt.Sprintf("policy.ingest[%d]", i), p)
	}
	c.int("policy.ingest", len(n.Policy.Ingest), 0, maxList)
	c.siteNetworks(n.Policy)
	c.toolchains(n.Toolchains)
	c.devices(n.Devices)
	c.span("reconnect.max_backoff", n.Reconnect.MaxBackoff, time.Second, maxBackoff)
	c.span("shutdown.grace", n.Shutdown.Grace, 0, maxShutdown)
	c.span("retention.finalize", n.Retention.Finalize, time.Second, maxRetention)
	c.span("retention.stale_workspace", n.Retention.StaleWorkspace, time.Second, maxRetention)
	c.span("retention.debug_failed", n.Retention.DebugFailed, 0, maxRetention)
	c.traces(n.Traces)
	c.preemption(n.Preemption)
	c.int("checkpoints.uploads", n.Checkpoints.Uploads, 1, maxJobs)
	return c.faults
}

func (c *check) preemption(p PreemptionConfig) {
	if p.File != "" {
		c.absolute("preemption.file", p.File)
	}
	if len(p.Command) > 0 {
		c.absolute("preemption.command[0]", p.Command[0])
	}
	c.int("preemption.command", len(p.Command), 0, maxList)
	if u := p.HTTP.URL; u != "" && (!collectorURL.MatchString(u) || len(u) > maxPath) {
		c.add("preemption.http.url", "%q is not http://HOST/PATH or https://HOST/PATH, without a user", forgeyard.Clip(u, 80))
	}
	c.int("preemption.http.headers", len(p.HTTP.Headers), 0, maxList)
	c.span("preemption.every", p.Every, time.Second, maxBackoff)
}

func (c *check) cacheAPI(n CacheAPIConfig) {
	if n.On() {
		c.hostPort("cache_api.listen", n.Listen, true)
	}
	c.span("cache_api.keep", n.Keep, minCacheKeep, maxCacheKeep)
	c.span("cache_api.forget_after", n.ForgetAfter, time.Hour, maxKeep)
	c.int("cache_api.max_names", n.MaxNames, 1000, maxCacheNames)
}

func (c *check) secrets(files map[string]string) {
	c.int("secrets", len(files), 0, maxList)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		c.err("secrets", job.CheckSecretName(name))
		c.absolute("secrets."+name, files[name])
	}
}

func (c *check) limits(n Node) {
	switch u := n.Users; {
	case u.First == 0 && u.Count > 0:
		c.add("users.count", "stands with users.first only")
	case u.First > 0 && (u.First < minUser || uint64(u.First)+uint64(u.Count) > maxUser):
		c.add("users.first", "%d to %d is not in [%d, %d]", u.First, uint64(u.First)+uint64(u.Count)-1, minUser, int64(maxUser))
	case u.First > 0 && int(u.Count) < max(n.Limits.MaxJobs, 1):
		c.add("users.count", "%d is fewer than limits.max_jobs, which is %d", u.Count, n.Limits.MaxJobs)
	}
	if n.Process.GID == 0 {
		c.add("process.gid", "0 is root's group; work never runs as root")
	}
	seen := map[string]bool{}
	for i, e := range n.Executors {
		if seen[e] {
			c.add(fmt.Sprintf("executors[%d]", i), "%q is given twice", e)
		}
		seen[e] = true
	}
	c.int("limits.max_jobs", n.Limits.MaxJobs, 0, maxJobs)
	c.cpu("limits.cpu", n.Limits.CPU)
	c.size("limits.memory", n.Limits.Memory, 0, maxBytes)
	c.size("limits.disk", n.Limits.Disk, 0, maxBytes)
	c.size("limits.layers", n.Limits.Layers, 0, maxBytes)
	c.cpu("limits.reserve.cpu", n.Limits.Reserve.CPU)
	c.size("limits.reserve.memory", n.Limits.Reserve.Memory, 0, maxBytes)
	c.size("limits.reserve.disk", n.Limits.Reserve.Disk, 0, maxBytes)
	c.size("cas.limit", n.CAS.Limit, 0, maxBytes)
	c.size("cas.reserve", n.CAS.Reserve, 0, maxBytes)
	if n.CAS.ScrubEvery != 0 {
		c.span("cas.scrub_every", n.CAS.ScrubEvery, time.Hour, maxKeep)
	}
	c.size("cas.scrub_rate", n.CAS.ScrubRate, minScrub, maxBytes)
	r := n.CAS.Rates
	for _, v := range []struct {
		at   string
		rate Size
	}{{"to_peer", r.ToPeer}, {"to_peers", r.ToPeers}, {"from_peers", r.FromPeers}, {"to_uplink", r.ToUplink}, {"from_uplink", r.FromUplink}} {
		if v.rate != 0 {
			c.size("cas.rates."+v.at, v.rate, minRate, maxBytes)
		}
	}
	c.span("cas.deadlines.peers", n.CAS.Deadlines.Peers, minSilence, maxQuiet)
	c.span("cas.deadlines.uplink", n.CAS.Deadlines.Uplink, minSilence, maxQuiet)
	c.size("spool.limit", n.Spool.Limit, minSpool, maxBytes)
	if n.Spool.PerJob != 0 {
		c.size("spool.per_job", n.Spool.PerJob, minSpool, maxBytes)
	}
}

func (c *check) toolchains(ts []ToolchainConfig) {
	c.int("toolchains", len(ts), 0, maxList)
	seen := map[string]bool{}
	for i, t := range ts {
		at := fmt.Sprintf("toolchains[%d]", i)
		c.err(at+".name", job.CheckName(t.Name))
		c.text(at+".version", t.Version, maxText)
		if t.Path != "" {
			c.absolute(at+".path", t.Path)
		}
		if t.Path != "" && !t.Digest.IsZero() {
			c.add(at+".digest", "is given with path; a tool is the machine's or the store's")
		}
		if seen[t.Name] {
			c.add(at+".name", "%q is given twice", t.Name)
		}
		seen[t.Name] = true
	}
}

func (c *check) devices(ds []DeviceConfig) {
	c.int("devices", len(ds), 0, maxDevices)
	ids, paths := map[string]bool{}, map[string]bool{}
	for i, d := range ds {
		at := fmt.Sprintf("devices[%d]", i)
		// The id names a file below <data>/devices.
		c.err(at+".id", job.CheckWord(string(d.ID)))
		c.absolute(at+".path", d.Path)
		c.err(at+".labels", job.CheckLabels(d.Labels))
		c.text(at+".serial", d.Serial, maxText)
		c.int(at+".baud", d.Baud, 50, maxBaud)
		c.text(at+".reset.send", strings.ReplaceAll(d.Reset.Send, "\x00", ""), maxSend)
		c.text(at+".reset.expect", d.Reset.Expect, maxText)
		c.span(at+".reset.timeout", d.Reset.Timeout, 100*time.Millisecond, maxReset)
		if ids[string(d.ID)] {
			c.add(at+".id", "%q is given twice", d.ID)
		}
		if paths[d.Path] {
			c.add(at+".path", "%q is given twice; one console is one device", d.Path)
		}
		ids[string(d.ID)], paths[d.Path] = true, true
	}
}

var collectorURL = regexp.MustCompile(`^https?://[^/@?#\s]+(/[^@?#\s]*)?$`)

// traces checks where spans go. A password in the address would stand in every listing of the
// settings.
func (c *check) traces(t TracesConfig) {
	if t.Endpoint != "" {
		if !collectorURL.MatchString(t.Endpoint) || len(t.Endpoint) > maxPath {
			c.add("traces.endpoint", "%q is not http://HOST:PORT or https://HOST:PORT of a collector, without a user", forgeyard.Clip(t.Endpoint, 80))
		}
	}
	if !(t.Sample > 0 && t.Sample <= 1) {
		c.add("traces.sample", "%v is not in (0, 1]; to trace nothing leave traces.endpoint empty", t.Sample)
	}
}
