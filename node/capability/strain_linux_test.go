package capability

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// RA-130: what a machine says of itself is read as it stands, and what it does not say is not made up.
func TestStrain(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"psi/cpu":                    "some avg10=98.71 avg60=96.17 avg300=92.67 total=35382043723\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"psi/memory":                 "some avg10=31.00 avg60=0.00 avg300=0.05 total=762665908\nfull avg10=21.50 avg60=0.00 avg300=0.00 total=634992315\n",
		"psi/io":                     "some avg10=2.84 avg60=8.34 avg300=10.07 total=4329128872\nfull avg10=0.25 avg60=0.02 avg300=0.12 total=1313972497\n",
		"thermal/thermal_zone0/temp": "61000\n",
		"thermal/thermal_zone0/trip_point_0_type": "passive\n",
		"thermal/thermal_zone0/trip_point_0_temp": "60000\n",
		"thermal/thermal_zone0/trip_point_1_type": "critical\n",
		"thermal/thermal_zone0/trip_point_1_temp": "105000\n",
		"thermal/thermal_zone1/temp":              "90500\n",
		"thermal/thermal_zone1/trip_point_0_type": "hot\n",
		"thermal/thermal_zone1/trip_point_0_temp": "95000\n",
		"thermal/thermal_zone1/trip_point_1_type": "critical\n",
		"thermal/thermal_zone1/trip_point_1_temp": "-274000\n",
		"thermal/thermal_zone2/temp":              "not a number\n",
		"stat":                                    "cpu  100 20 30 9000 800 4 5 6 70 0\ncpu0 100 20 30 9000 800 4 5 6 70 0\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := pressure.Sample{CPU: 98.71, Memory: 21.5, IO: 0.25, HasStall: true, Heat: 4.5, HasHeat: true, Busy: 1650 * time.Millisecond}
	if got := strain(filepath.Join(dir, "psi"), filepath.Join(dir, "thermal"), filepath.Join(dir, "stat")); got != want {
		t.Errorf("%+v", got)
	}
	if got := strain(dir, dir, dir); got != (pressure.Sample{}) {
		t.Errorf("a machine that tells nothing: %+v", got)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7 x\n", "cpu 1 2 3 4 5 6 7 -8\n"} {
		file := filepath.Join(dir, "odd")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := busy(file); got != 0 {
			t.Errorf("%q gives %s", text, got)
		}
	}
	t.Logf("this machine: %+v", Strain())
}
