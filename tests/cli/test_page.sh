#!/bin/sh
# usage: test_page.sh GRAPHRUN
# With GR_SLOW=1 and a Chromium: the html pages of a plan and of runs load without an error, and the pointer shows details.
set -eu
graphrun=$1
[ "${GR_SLOW:-0}" = 1 ] || { echo "skipped: GR_SLOW=1 runs it"; exit 77; }
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "skipped: no Chromium"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
    echo "$*" >&2
    exit 1
}

# Names as long as they may be.
sed 's/\brollout\b/rollout_of_policy_with_a_long_long_name/g; s/\bold_logprob\b/old_logprob_under_the_behaviour_policy/g' graphs/quickstart.yaml >"$dir/long.yaml"
"$graphrun" plan "$dir/long.yaml" --set data=x --set model="$PWD/graphs/quickstart" --format html -o "$dir/plan.html"
# Beside the page: errors go to the title; then a pointer over chart, lane and node, a drag, clicks.
cat >"$dir/head" <<'END'
<script>window.onerror = m => { document.documentElement.dataset.failed = m; };</script>
END
cat >"$dir/tail" <<'END'
<script>
addEventListener('load', () => {
  const said = [], note = (name, ok) => said.push(`${name}:${ok ? 'ok' : 'BAD'}`);
  const send = (id, type, fx, fy) => {
    const box = $(id).getBoundingClientRect(), x = box.left + fx * box.width, y = box.top + fy * box.height;
    const at = document.elementFromPoint(x, y);
    (at && $(id).contains(at) ? at : $(id)).dispatchEvent(new PointerEvent(type, {clientX: x, clientY: y, bubbles: true, cancelable: true}));
  };
  const tip = () => $('tip').hidden ? '' : $('tip').textContent;
  note('first', axis === 'time' && document.querySelectorAll('.card').length === 8 && /tokens\/s/.test($('cards').textContent));
  const wide = [...$('peak').querySelectorAll('i')].reduce((sum, i) => sum + i.getBoundingClientRect().width, 0), bar = $('peak').getBoundingClientRect();
  note('peak', Math.abs(wide / bar.width - rank.peak_bytes / Math.max(rank.peak_bytes, plan.budget_bytes)) < 0.01 && bar.bottom < innerHeight);
  const boxes = [...document.querySelectorAll('#graph [data-node]')].map(g => [g.querySelector('.box').getBBox(), [...g.querySelectorAll('text')].map(t => t.getBBox())]);
  note('boxes', boxes.every(([b, texts]) => texts.every(t => t.x >= b.x && t.x + t.width <= b.x + b.width && t.y >= b.y && t.y + t.height <= b.y + b.height)));
  const flows = [...document.querySelectorAll('.flow')], at = flows.map(t => t.getBBox());
  note('flows', flows.length === document.querySelectorAll('.edge').length && flows.some(t => t.textContent === 'rows') &&
    at.every((a, i) => at.every((b, k) => k <= i || a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + 0.7 * a.height <= b.y || b.y + 0.7 * b.height <= a.y)));
  const legends = ['device-legend', 'lanes'].map(id => $(id).getBoundingClientRect());
  note('legends', legends[0].bottom <= legends[1].top);
  document.querySelector('[data-axis=steps]').click();
  send('device', 'pointermove', 0.5, 0.5);
  note('memory', /step \d+: .*in use.*actor weights/.test(tip()));
  send('device', 'pointerleave', 0, 0);
  note('leave', tip() === '');
  send('lanes', 'pointermove', 0.2, 0.45);
  note('lanes', /step \d+: .*begins.*ends.*resident/.test(tip()));
  const box = document.querySelector('[data-node] rect').getBoundingClientRect();
  document.querySelector('[data-node="1"]').dispatchEvent(new PointerEvent('pointermove', {clientX: box.x, clientY: box.y, bubbles: true}));
  note('node', /rollout.*generate.*reads prompts/.test(tip()) && document.querySelectorAll('.edge.lit').length > 1);
  const areas = () => [...document.querySelectorAll('#device path.area')].map(p => p.getAttribute('d')).join();
  const before = areas();
  send('device', 'pointerdown', 0.3, 0.5);
  send('device', 'pointerup', 0.6, 0.5);
  note('drag', range !== null && areas() !== before);
  send('device', 'dblclick', 0.5, 0.5);
  note('reset', range === null && areas() === before);
  document.querySelector('[data-axis=time]').click();
  note('time', axis === 'time' && areas() !== before && $('axis').firstElementChild.getAttribute('aria-pressed') === 'true');
  send('device', 'pointerdown', 0.5, 0.5);
  send('device', 'pointerup', 0.5, 0.5);
  note('find', document.querySelectorAll('#list tr.at').length === 1);
  document.querySelector('[data-list=ledger]').click();
  $('filter').value = 'actor.params';
  $('filter').dispatchEvent(new Event('input'));
  note('filter', document.querySelectorAll('#list tbody tr').length === 5);
  document.documentElement.dataset.said = said.join(' ');
});
</script>
END
sed -e "/<head>/r $dir/head" -e "/^<\/body>/{
r $dir/tail
}" "$dir/plan.html" >"$dir/test.html"
"$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$dir/profile" --window-size=1400,1400 --enable-logging=stderr \
    --virtual-time-budget=3000 --dump-dom "file://$dir/test.html" >"$dir/dom" 2>"$dir/log" || fail "$(tail "$dir/log")"
! grep 'CONSOLE' "$dir/log" || fail "the page has errors"
! grep -o 'data-failed="[^"]*"' "$dir/dom" || fail "the page has errors"
said=$(sed -n 's/.*<html[^>]*data-said="\([^"]*\)".*/\1/p' "$dir/dom")
[ "$said" = "first:ok peak:ok boxes:ok flows:ok legends:ok memory:ok leave:ok lanes:ok node:ok drag:ok reset:ok time:ok find:ok filter:ok" ] || fail "the page says: $said"

# The page shows as many transitions as the table, beside the collectives of several ranks.
set -- graphs/quickstart.yaml --set model="$PWD/graphs/quickstart" --budget 32MiB --ranks 4
n=$("$graphrun" plan "$@" | sed -nE 's/.*, ([0-9]+) transition steps, .*/\1/p')
"$graphrun" plan "$@" --format html -o "$dir/moves.html"
"$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$dir/profile" --virtual-time-budget=3000 --dump-dom \
    "file://$dir/moves.html" >"$dir/dom" 2>"$dir/log" || fail "$(tail "$dir/log")"
grep -q "Transitions</span><b class=\"\">$n</b>" "$dir/dom" || fail "the page does not show $n transitions"

# Of several roles the page shows the one that its hash names, and every node where it runs.
"$graphrun" plan graphs/grpo_split.yaml --set model=tests/cli/model/config.json --ranks 4 --set lag=1 --format html -o "$dir/classes.html"
for class in 0 1; do
    "$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$dir/profile" --window-size=1400,1400 \
        --enable-logging=stderr --virtual-time-budget=3000 --dump-dom "file://$dir/classes.html#class=$class" >"$dir/dom" 2>"$dir/log" ||
        fail "$(tail "$dir/log")"
    ! grep 'CONSOLE' "$dir/log" || fail "the page of class $class has errors"
    grep -q "<button data-class=\"$class\" aria-pressed=\"true\">" "$dir/dom" || fail "class $class is not chosen"
    grep -q 'trains actor</text><text [^>]*>ranks 0-1<' "$dir/dom" || fail "class $class does not say where the update runs"
    grep -q 'model ref</text><text [^>]*>ranks 2-3<' "$dir/dom" || fail "class $class does not say where the reference is asked"
done
grep -q '<td>recv</td><td>rollout.from.0.actor.lagged.0' "$dir/dom" || fail "class 1 does not show what it receives"

# Runs over each other: curves, what the pointer says, times by node, memory, samples by text and side by side; and a run that
# goes on while it is watched.
lines() { # RUN FACTOR
    mkdir "$dir/$1"
    echo '{"version": 1, "graph": "small"}' >"$dir/$1/plan.json"
    awk -v f="$2" 'BEGIN { for (i = 1; i <= 40; i++)
        printf "{\"step\": %d, \"reward_mean\": %g, \"kl\": %s, \"lr\": 1, \"seconds\": 2, \"seconds.rollout\": 1.5, \"seconds.update\": 0.4, \"planned_peak_bytes\": 2097152, \"measured_peak_bytes\": 2000000}\n", i, f * i, i % 5 ? i : "null" }' \
        >"$dir/$1/metrics.jsonl"
    awk 'BEGIN { for (i = 1; i <= 40; i++)
        printf "{\"step\": %d, \"sequence\": 0, \"prompt\": \"1+1=\", \"response\": \"the answer is %d\", \"reward\": %g}\n", i, i, i % 7 }' >"$dir/$1/samples.jsonl"
}
lines first 0.01
lines second 0.02
"$graphrun" report "$dir/first" "$dir/second" --format html -o "$dir/runs.html"
cat >"$dir/tail" <<'END'
<script>
addEventListener('load', () => {
  const said = [], note = (name, ok) => said.push(`${name}:${ok ? 'ok' : 'BAD'}`), tip = () => $('tip').hidden ? '' : $('tip').textContent;
  const over = (svg, fx) => {
    const box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + fx * box.width, clientY: box.top + 40, bubbles: true}));
  };
  const set = (id, value, kind = 'input') => { $(id).value = value; $(id).dispatchEvent(new Event(kind)); };
  const charts = () => [...document.querySelectorAll('.chart')].map(c => c.dataset.key).join();
  note('charts', charts() === 'reward_mean,kl,lr,seconds');
  over(document.querySelector('.chart svg'), 0.99);
  note('values', /iteration 40.*first0\.4.*second0\.8/.test(tip()));
  over($('nodes'), 0.99);
  note('nodes', /iteration 40.*whole2 s.*rollout1\.5 s.*update0\.4 s/.test(tip()));
  over($('memory'), 0.5);
  note('memory', /planned2\.00 MiB.*measured1\.91 MiB/.test(tip()));
  const before = document.querySelector('.chart .line').getAttribute('d');
  set('smooth', 0.9);
  note('smooth', document.querySelector('.chart .line:not(.raw)').getAttribute('d') !== before && document.querySelectorAll('.raw').length > 0);
  over(document.querySelector('.chart svg'), 0.5);
  const at = tip(), axis = () => document.querySelector('.chart svg').textContent, steps = axis();
  set('over', 'hours');
  over(document.querySelector('.chart svg'), 0.5);
  note('hours', /^iteration \d/.test(at) && tip() === at && axis() !== steps); // all take as long
  set('find', 'reward');
  note('find', charts() === 'reward_mean');
  set('search', 'answer is 17');
  note('search', document.querySelectorAll('#samples tr.row').length === 1);
  set('search', '');
  set('order', 'high');
  note('order', document.querySelector('#samples tr.row td:nth-child(2)').textContent === '6');
  document.querySelector('#samples tr.row').click();
  note('open', document.querySelectorAll('#samples tr.row .short').length === 2 * 39);
  set('at', 3);
  set('beside', 9);
  note('beside', document.querySelector('#samples .pair del').textContent === '3' && document.querySelector('#samples .pair ins').textContent === '9');
  document.documentElement.dataset.said = said.join(' ');
});
</script>
END
show() { # PAGE: in dom
    "$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$dir/profile" --window-size=1400,1400 --enable-logging=stderr \
        --virtual-time-budget=3000 --dump-dom "$1" >"$dir/dom" 2>"$dir/log" || fail "$(tail "$dir/log")"
    ! grep 'CONSOLE' "$dir/log" || fail "the page has errors"
    ! grep -o 'data-failed="[^"]*"' "$dir/dom" || fail "the page has errors"
}
sed -e "/<head>/r $dir/head" -e "/^<\/body>/{
r $dir/tail
}" "$dir/runs.html" >"$dir/test.html"
show "file://$dir/test.html"
said=$(sed -n 's/.*<html[^>]*data-said="\([^"]*\)".*/\1/p' "$dir/dom")
[ "$said" = "charts:ok values:ok nodes:ok memory:ok smooth:ok hours:ok find:ok search:ok order:ok open:ok beside:ok" ] || fail "the page says: $said"

[ -x "$(dirname "$graphrun")/graphrun-watch" ] || exit 0
"$graphrun" watch "$dir/first" >"$dir/url" &
server=$!
trap 'kill $server; rm -rf "$dir"' EXIT
while ! [ -s "$dir/url" ]; do sleep 0.1; done
show "$(cat "$dir/url")"
grep -q '40</b>' "$dir/dom" && grep -q 'the answer is 40' "$dir/dom" || fail "the watched run is not shown"
