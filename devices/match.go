package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// Request asks for one device. Empty fields match everything.
type Request struct {
	ID     forgeyard.DeviceID
	Kind   string
	Labels map[string]string
	Host   forgeyard.RunnerID
}

// Refusal says why one device does not serve.
type Refusal struct {
	Device forgeyard.DeviceID `json:"device"`
	Reason string             `json:"reason"`
}

// Fits says why the device is not what the request asks for, or "". Whether it
// can be had now is Grantable.
func (r Request) Fits(d Device) string {
	switch {
	case r.ID != "" && r.ID != d.ID:
		return fmt.Sprintf("the request names %s", r.ID)
	case r.Kind != "" && r.Kind != d.Kind:
		return fmt.Sprintf("kind is %s, %s is asked for", d.Kind, r.Kind)
	case r.Host != "" && r.Host != d.Host:
		return fmt.Sprintf("hosted by %s, %s is asked for", d.Host, r.Host)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		if got, ok := d.Labels[k]; !ok {
			return fmt.Sprintf("has no label %s, %s=%s is asked for", k, k, r.Labels[k])
		} else if got != r.Labels[k] {
			return fmt.Sprintf("label %s is %s, %s is asked for", k, got, r.Labels[k])
		}
	}
	return ""
}

// Match lists the devices that serve the request now, by id, and says of each
// other one why it does not.
func Match(r Request, ds []Device) (able []forgeyard.DeviceID, refused []Refusal) {
	for _, d := range byID(ds) {
		why := r.Fits(d)
		if why == "" {
			why = d.Grantable()
		}
		if why == "" {
			able = append(able, d.ID)
		} else {
			refused = append(refused, Refusal{d.ID, why})
		}
	}
	return able, refused
}

// Possible says whether the requests could ever be served together by these
// devices, busy ones included: a job that no set of devices fits is refused, not
// queued. It returns "" or the first request that stays without a device.
func Possible(rs []Request, ds []Device) string {
	fits := func(r Request, d Device) bool { return r.Fits(d) == "" && d.Health != Retired }
	if _, missing := assign(rs, byID(ds), fits); missing >= 0 {
		return fmt.Sprintf("no device for %s", rs[missing])
	}
	return ""
}

// Assign finds a different device for each request, of those that can be granted
// now. The same input gives the same answer on every voter. When it cannot, it
// returns nil and why each device does not serve the request that stayed without.
func Assign(rs []Request, ds []Device) ([]forgeyard.DeviceID, []Refusal) {
	sorted := byID(ds)
	got, missing := assign(rs, sorted, func(r Request, d Device) bool { return r.Fits(d) == "" && d.Grantable() == "" })
	if missing < 0 {
		return got, nil
	}
	able, refused := Match(rs[missing], sorted)
	for _, id := range able {
		refused = append(refused, Refusal{id, "is needed for another request of the same job"})
	}
	slices.SortFunc(refused, func(a, b Refusal) int { return strings.Compare(string(a.Device), string(b.Device)) })
	return nil, refused
}

// assign is a bipartite matching by augmenting paths: a greedy choice may give
// the only board that fits the second request to the first. It returns the place of
// a request that stays without, or -1.
func assign(rs []Request, ds []Device, fits func(Request, Device) bool) ([]forgeyard.DeviceID, int) {
	owner := make([]int, len(ds)) // by device: 1 + the request that has it
	var augment func(r int, seen []bool) bool
	augment = func(r int, seen []bool) bool {
		for i := range ds {
			if seen[i] || !fits(rs[r], ds[i]) {
				continue
			}
			seen[i] = true
			if owner[i] == 0 || augment(owner[i]-1, seen) {
				owner[i] = r + 1
				return true
			}
		}
		return false
	}
	for r := range rs {
		if !augment(r, make([]bool, len(ds))) {
			return nil, r
		}
	}
	out := make([]forgeyard.DeviceID, len(rs))
	for i, o := range owner {
		if o > 0 {
			out[o-1] = ds[i].ID
		}
	}
	return out, -1
}

func (r Request) String() string {
	var parts []string
	if r.ID != "" {
		parts = append(parts, string(r.ID))
	}
	if r.Kind != "" {
		parts = append(parts, "kind "+r.Kind)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		parts = append(parts, k+"="+r.Labels[k])
	}
	if r.Host != "" {
		parts = append(parts, "host "+string(r.Host))
	}
	if len(parts) == 0 {
		return "any device"
	}
	return strings.Join(parts, " ")
}

func byID(ds []Device) []Device {
	out := slices.Clone(ds)
	slices.SortFunc(out, func(a, b Device) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}
