#!/usr/bin/env bash
# Checks the Helm chart without a cluster: what it renders for each file of tests/chart/cases (golden files; UPDATE=1
# rewrites them, read the diff), and what its schema refuses, with the message in the first line of each file of
# tests/chart/refused.
set -euo pipefail

helm=${HELM:-${MILLRACE_CACHE:-$HOME/.cache/millrace}/kube/bin/helm}
tests=tests/chart
if [ ! -x "$helm" ]; then
    printf 'chart: %s is missing\n' "$helm" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export HELM_CACHE_HOME=$scratch/cache HELM_CONFIG_HOME=$scratch/config HELM_DATA_HOME=$scratch/data

failed=0
mistake() {
    printf 'chart: %s\n' "$*" >&2
    failed=1
}

# The chart as users get it: a package, with the linked CRDs in it.
"$helm" package charts/millrace --destination "$scratch" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; exit 1; }
chart=$(echo "$scratch"/millrace-*.tgz)
render() {
    "$helm" template millrace "$chart" --namespace millrace-system --kube-version 1.34.0 --values "$1"
}
# Without what other files hold word for word: CRDs and dashboards.
rendered_here() {
    awk -v RS='---\n' -v ORS='' '
        $0 != "" && !/\nkind: CustomResourceDefinition\n/ && !/\n  name: [a-z-]*-dashboard-/ { print "---\n" $0 }'
}

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
for field in version appVersion; do
    grep -qx "$field: \"\?$version\"\?" charts/millrace/Chart.yaml || mistake "Chart.yaml: $field is not $version"
done

for values in "$tests"/cases/*.yaml; do
    name=$(basename "$values" .yaml)
    golden=$tests/golden/$name.yaml
    "$helm" lint --strict --quiet "$chart" --values "$values" || mistake "helm lint --strict fails with $values"
    render "$values" >"$scratch/rendered" || { mistake "helm template fails with $values"; continue; }
    rendered_here <"$scratch/rendered" >"$scratch/$name"
    [ -z "${UPDATE:-}" ] || cp "$scratch/$name" "$golden"
    diff -u "$golden" "$scratch/$name" || mistake "$golden is out of date: run with UPDATE=1 and read the diff"
done

# CRDs: all of them, word for word but for the line that keeps them.
render "$tests/cases/defaults.yaml" >"$scratch/rendered"
for crd in crds/*.yaml; do
    awk -v RS='---\n' -v name="\n  name: $(basename "$crd" .yaml)\n" \
        'index($0, name) && /\nkind: CustomResourceDefinition\n/' "$scratch/rendered" >"$scratch/crd"
    grep -q '^    helm.sh/resource-policy: keep$' "$scratch/crd" || mistake "$crd is not in the chart, or not kept"
    diff <(sed -e '/^#/d' -e '/^$/d' "$crd") \
        <(sed -e '/^#/d' -e '/^$/d' -e '/^  annotations:$/{N;/helm.sh.resource-policy: keep$/d}' "$scratch/crd") \
        || mistake "the chart's $crd is another one"
done

# Dashboards: all of them, word for word; and with the other label where a namespace is enforced.
dashboards() { # values
    render "$1" >"$scratch/rendered" || { mistake "helm template fails with $1"; return; }
    awk -v RS='---\n' -v ORS='' '/\n  name: [a-z-]*-dashboard-/' "$scratch/rendered" | sed -n 's/^    //p' | grep -v '^[a-z]'
}
cat charts/millrace/files/dashboards/*.json >"$scratch/dashboards"
diff "$scratch/dashboards" <(dashboards "$tests/cases/everything.yaml") || mistake "the chart's dashboards are others"
if dashboards "$tests/cases/namespaces-with-identity.yaml" | grep -nE '[^_]namespace[=",]'; then
    mistake 'a dashboard that looks for a label which is enforced'
fi

# Rights: named one by one, none that hands out rights, and nothing cluster-wide where that was ruled out.
if grep -nE '\*' "$tests"/golden/*.yaml; then
    mistake 'a wildcard'
fi
if grep -nwE 'escalate|bind|impersonate' "$tests"/golden/*.yaml; then
    mistake 'a right to hand out rights'
fi
if grep -nE '^kind: (Cluster|PriorityClass)|namespace: kube-system' "$tests/golden/namespaces.yaml"; then
    mistake 'an object outside of the namespaces that are watched'
fi

refused=0
for values in "$tests"/refused/*.yaml; do
    message=$(sed -n '1s/^# //p' "$values")
    if render "$values" >/dev/null 2>"$scratch/error"; then
        mistake "$values is accepted"
    elif ! grep -qF -- "$message" "$scratch/error"; then
        mistake "$values is refused with another message: $(cat "$scratch/error")"
    fi
    refused=$((refused + 1))
done

[ "$failed" -eq 0 ] || exit 1
printf 'chart: %s cases render as they should, %s bad values are refused\n' "$(ls "$tests"/cases | wc -l)" "$refused"
