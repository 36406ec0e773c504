package sitecfg

import (
	"strconv"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
	"github.com/forgeyard/forgeyard-node/job"
)

// Site is the site's policy: site.yaml, kept in the log, changed by `site config`.
// The keys of its encoding are append-only.
type Site struct {
	Lease        LeaseConfig        `yaml:"lease" cbor:"1,keyasint"`
	Voters       int                `yaml:"voters" cbor:"2,keyasint"` // wanted voters: 1, 3, 5 or 7; default 3
	Durability   DurabilityConfig   `yaml:"durability" cbor:"3,keyasint"`
	Interruption InterruptionConfig `yaml:"interruption" cbor:"4,keyasint"`
	Upload       UploadConfig       `yaml:"upload" cbor:"5,keyasint"`
}

// LeaseConfig times leases. A holder counts from its send, the granter from its
// apply and longer by the drift bound (decision 1).
type LeaseConfig struct {
	// TTL without a renewal. Default 15s. Shorter finds a dead runner sooner and
	// loses leases to shorter pauses.
	TTL time.Duration `yaml:"ttl" cbor:"1,keyasint"`
	// Renew is how often a holder renews. Default 5s; at most a third of TTL, so
	// that two renewals may get lost.
	Renew time.Duration `yaml:"renew" cbor:"2,keyasint"`
	// Grace is the site's own patience with a silent holder on top of TTL; see
	// ReassignAfter. A job's own grace stands in its spec. Default 2m.
	Grace time.Duration `yaml:"grace" cbor:"3,keyasint"`
	// ReassignAfter is how long a silent holder under `offline_authorized` keeps a job
	// without protected effects to itself. Default 0: TTL + Grace.
	ReassignAfter time.Duration `yaml:"reassign_after" cbor:"4,keyasint"`
	// Drift bounds how much two machines' clocks may differ in rate. Default 0.01.
	// Too small, and two holders may act at once; it costs only waiting.
	Drift Ratio `yaml:"drift" cbor:"5,keyasint"`
}

// Reassign is ReassignAfter with its default.
func (l LeaseConfig) Reassign() time.Duration {
	if l.ReassignAfter == 0 {
		return l.TTL + l.Grace
	}
	return l.ReassignAfter
}

// DurabilityConfig is what `durability: site` means.
type DurabilityConfig struct {
	// Copies are the nodes that must acknowledge a durable copy. Default 2.
	Copies int `yaml:"copies" cbor:"1,keyasint"`
	// AcceptFewer commits a result when too few nodes are in reach, and marks it.
	// Default false: the completion waits in `uploading` and says so.
	AcceptFewer bool `yaml:"accept_fewer" cbor:"2,keyasint"`
}

// InterruptionConfig bounds what trouble from outside may cost.
type InterruptionConfig struct {
	// ResumeFailures of one checkpoint before it is quarantined. Default 2.
	ResumeFailures int `yaml:"resume_failures_per_checkpoint" cbor:"1,keyasint"`
	// MaxStopGrace bounds the time between the stop signal and the kill that a job may ask
	// for. Default 0: as the job asks, which is at most an hour.
	MaxStopGrace time.Duration `yaml:"max_stop_grace" cbor:"58,keyasint,omitempty"`
}

// UploadConfig bounds what a client may bring in.
type UploadConfig struct {
	// Limit of one object, in bytes. Default 64GiB.
	Limit Size `yaml:"limit" cbor:"1,keyasint"`
}

// DefaultSite is the policy of a new site (decision 19).
func DefaultSite() Site {
	return Site{
		Lease:        LeaseConfig{TTL: 15 * time.Second, Renew: 5 * time.Second, Grace: job.DefaultGrace, Drift: 10_000},
		Voters:       3,
		Durability:   DurabilityConfig{Copies: 2},
		Interruption: InterruptionConfig{ResumeFailures: 2},
		Upload:       UploadConfig{Limit: 64 << 30},
	}
}

// ParseSite reads site.yaml. Keys that it does not give have their defaults.
func ParseSite(name string, data []byte) (Site, error) {
	return parseSite(name, data, DefaultSite())
}

func parseSite(name string, data []byte, base Site) (Site, error) {
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return Site{}, err
	}
	if err := finish(doc, &base, func() []fault { return base.faults() }); err != nil {
		return Site{}, err
	}
	return base, nil
}

// Validate says everything that is wrong with the policy, or nil.
func (s Site) Validate() error { return explain("site config", s.faults()) }

func (s Site) faults() []fault {
	var c check
	l := s.Lease
	c.span("lease.ttl", l.TTL, minTTL, maxTTL)
	c.span("lease.renew", l.Renew, minTTL/10, maxTTL)
	if l.Renew > l.TTL/3 {
		c.add("lease.renew", "%v is more than a third of lease.ttl %v: two lost renewals would cost the lease", l.Renew, l.TTL)
	}
	c.span("lease.grace", l.Grace, 0, maxGrace)
	if l.ReassignAfter != 0 {
		c.span("lease.reassign_after", l.ReassignAfter, l.TTL, maxGrace)
	}
	c.between("lease.drift", int64(l.Drift), 0, maxDrift, func(n int64) string { return Ratio(n).String() })
	if s.Voters < 1 || s.Voters > maxVoters || s.Voters%2 == 0 {
		c.add("voters", "%d; allowed: 1, 3, 5, 7", s.Voters)
	}
	c.int("durability.copies", s.Durability.Copies, 1, maxCopies)
	c.int("interruption.resume_failures_per_checkpoint", s.Interruption.ResumeFailures, 1, job.MaxBudget)
	c.span("interruption.max_stop_grace", s.Interruption.MaxStopGrace, 0, job.MaxGrace)
	c.size("upload.limit", s.Upload.Limit, 1<<20, maxUpload)
	return c.faults
}

// Encode is the canonical form that the log holds.
func (s Site) Encode() []byte { return cborx.Marshal(s) }

// DecodeSite reads the canonical form and validates it.
func DecodeSite(b []byte) (Site, error) {
	var s Site
	if err := cborx.UnmarshalCanonical(b, &s); err != nil {
		return Site{}, forgeyard.E("site config", forgeyard.Invalid, err)
	}
	if err := s.Validate(); err != nil {
		return Site{}, err
	}
	return s, nil
}

// SiteKeys lists the keys of Get and Set, sorted.
func SiteKeys() []string { return strictyaml.LeafKeys(Site{}) }

// Get is the value under a dotted key, in the form that Set takes.
func (s Site) Get(key string) (string, error) {
	for _, l := range strictyaml.Leaves(s) {
		if l.Key == key {
			return l.Value, nil
		}
	}
	return "", unknownKey(key)
}

// Set is the policy with one value changed; the result is valid.
func (s Site) Set(key, value string) (Site, error) {
	if _, err := s.Get(key); err != nil {
		return Site{}, err
	}
	doc, err := strictyaml.Parse("site config", nil)
	if err != nil {
		return Site{}, err
	}
	if err := doc.Override(key, value, "site config"); err != nil {
		return Site{}, err
	}
	if err := finish(doc, &s, func() []fault { return s.faults() }); err != nil {
		return Site{}, err
	}
	return s, nil
}

func unknownKey(key string) error {
	return forgeyard.Errorf("site config", forgeyard.NotFound, "there is no key %q", forgeyard.Clip(key, maxText)).WithHint("`site config get` lists them")
}

// Ratio is a fraction in millionths, written as a decimal: 0.01 is 10000. It is
// not a float, because voters on different processors must compute the same.
type Ratio int64

// MarshalText writes the shortest decimal.
func (r Ratio) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r Ratio) String() string { return strconv.FormatFloat(float64(r)/1e6, 'f', -1, 64) }

// UnmarshalText reads a decimal with at most six places.
func (r *Ratio) UnmarshalText(b []byte) error {
	n, ok := strictyaml.ParseScaled(string(b), 1_000_000)
	if !ok {
		return forgeyard.Errorf("", forgeyard.Invalid, "%q is not a ratio; allowed: a decimal such as 0.01, with at most six places", forgeyard.Clip(string(b), maxText))
	}
	*r = Ratio(n)
	return nil
}

// Stretch is d made longer by the ratio, rounded up.
func (r Ratio) Stretch(d time.Duration) time.Duration {
	whole, rest := d/1_000_000, d%1_000_000
	return d + whole*time.Duration(r) + (rest*time.Duration(r)+999_999)/1_000_000
}
