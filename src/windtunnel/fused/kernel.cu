// One thread block holds a small recurrent network: forward, backward through time, clipping and update
// need no further launch.
//
// cuda.py compiles this file at run time with these macros: R, NI, NO (hidden units, inputs, outputs), UNITS
// and LANES (below), ACT (0 relu, 1 sigmoid, 2 tanh), LEAKY, CROSS (cross entropy) and MODE (0: train over
// many updates, 1: forward of a batch, 2: backward of a batch). In mode 0 a block is one network; in modes 1
// and 2 it is one example of one network.
//
// A group of LANES threads (1, 2, 4 or 8) holds UNITS hidden units (1 to LANES). Each lane keeps in
// registers its share of the incoming weights of these units (v: from the states of the step before and
// the inputs, which form one row z), of the outgoing weights (w) and of the gradient of v. Shared memory
// holds the rows z of all timesteps. A timestep is then a row of products, a few shuffles and one barrier,
// without global memory. With more units per group the block reads less of z; with more lanes it needs
// fewer registers and more shuffles. The fastest combination was measured (benchmarks/shapes.py; cuda.py,
// `thread_layout`).

#define VEC (LANES == 8 ? 2 : 4)  // floats per vector load
#define BESIDE (32 / LANES)       // groups per warp
#define GROUPS (((R + UNITS - 1) / UNITS + BESIDE - 1) / BESIDE * BESIDE)
#define ROWS (GROUPS * UNITS)
#define THREADS (GROUPS * LANES)
#define WARPS (THREADS / 32)
#define STRIDE (VEC * LANES)
#define Z (R + NI)
#define ZP ((Z + STRIDE - 1) / STRIDE * STRIDE)
#define RP ((R + STRIDE - 1) / STRIDE * STRIDE)
#define SENT (RP > ROWS ? RP : (ROWS + 3) / 4 * 4)
#define WIDE (RP + VEC)  // row stride of the transpose buffer; the padding avoids bank conflicts
#define NV (ZP / LANES)
#define NW (RP / LANES)
#define KO ((NO + LANES - 1) / LANES)
#define CHAINS (UNITS >= 4 ? 1 : 4 / UNITS)  // independent accumulators per product
#define SLOTS (UNITS * (NV + KO) + 1 + KO)
#define P_REC (NI * R)
#define P_BIAS (P_REC + R * R)
#define P_OUT (P_BIAS + R)
#define P_LAST (P_OUT + R * NO)
#define P_ALL (P_LAST + NO)
#define EVERYONE 0xffffffffu

#if WARPS == 1
#define BARRIER __syncwarp()
#else
#define BARRIER __syncthreads()
#endif

// Unit u of a group is unit group + u * GROUPS of the network. After a reduction each lane holds the sum
// of one unit, given by the lowest bits of the lane.
#define OWN(lane) ((lane) & (UNITS - 1))
// Element i of a lane's share is element PLACE(i, lane) of the row.
#define PLACE(i, lane) (((i) / VEC * LANES + (lane)) * VEC + (i) % VEC)

struct Own {  // the part of the network that one thread holds
    float v[UNITS][NV], w[UNITS][NW], dv[UNITS][NV];
    float out[UNITS][KO], dout[UNITS][KO];
    float bias, dbias;            // of the unit of this lane
    float last[KO], dlast[KO];    // bias of the outputs, the same in every group
};

// Load a lane's share of a row; `begin` is its first element.
template <int N>
__device__ __forceinline__ void take(float (&share)[N], const float* begin) {
#pragma unroll
    for (int k = 0; k < N / VEC; k++) {
#if VEC == 4
        float4 found = *reinterpret_cast<const float4*>(begin + k * STRIDE);
        share[k * 4 + 2] = found.z;
        share[k * 4 + 3] = found.w;
#else
        float2 found = *reinterpret_cast<const float2*>(begin + k * STRIDE);
#endif
        share[k * VEC] = found.x;
        share[k * VEC + 1] = found.y;
    }
}

template <int N>
__device__ __forceinline__ float product(const float (&a)[N], const float (&b)[N], float start) {
    float sums[CHAINS] = {start};
#pragma unroll
    for (int i = 0; i < N; i++) sums[i % CHAINS] = fmaf(a[i], b[i], sums[i % CHAINS]);
#pragma unroll
    for (int left = CHAINS / 2; left; left /= 2)
#pragma unroll
        for (int i = 0; i < left; i++) sums[i] += sums[i + left];
    return sums[0];
}

// The sum of each unit over the lanes. Each shuffle exchanges the sums of two units, so that every lane
// ends with the sum of its own unit.
__device__ __forceinline__ float gather(float (&sums)[UNITS], int lane) {
#pragma unroll
    for (int apart = 1; apart < UNITS; apart *= 2) {
        bool odd = lane & apart;
#pragma unroll
        for (int e = 0; e < UNITS / 2 / apart; e++) {
            float given = odd ? sums[2 * e] : sums[2 * e + 1], kept = odd ? sums[2 * e + 1] : sums[2 * e];
            sums[e] = kept + __shfl_xor_sync(EVERYONE, given, apart);
        }
    }
#pragma unroll
    for (int apart = UNITS; apart < LANES; apart *= 2) sums[0] += __shfl_xor_sync(EVERYONE, sums[0], apart);
    return sums[0];
}

__device__ __forceinline__ float activate(float a) {
#if ACT == 0
    return fmaxf(a, 0.0f);
#elif ACT == 1
    return 1.0f / (1.0f + __expf(-a));
#else
    return tanhf(a);
#endif
}

__device__ __forceinline__ float slope_of(float r) {  // derivative of the activation, from its value
#if ACT == 0
    return r > 0.0f ? 1.0f : 0.0f;
#elif ACT == 1
    return r * (1.0f - r);
#else
    return 1.0f - r * r;
#endif
}

// Asynchronous copy from global to shared memory.
__device__ __forceinline__ void fetch(float* there, const float* here) {
    unsigned address = (unsigned)__cvta_generic_to_shared(there);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(here));
}

__device__ void load(Own& own, const float* p, int group, int lane) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int unit = group + u * GROUPS;
        bool real = unit < R;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            int j = PLACE(i, lane);
            own.v[u][i] = 0.0f;
            if (real && j < R) own.v[u][i] = p[P_REC + j * R + unit];
            else if (real && j < Z) own.v[u][i] = p[(j - R) * R + unit];
        }
#pragma unroll
        for (int i = 0; i < NW; i++) {
            int m = PLACE(i, lane);
            own.w[u][i] = real && m < R ? p[P_REC + unit * R + m] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < KO; k++) {
            int o = k * LANES + lane;
            own.out[u][k] = real && o < NO ? p[P_OUT + unit * NO + o] : 0.0f;
        }
    }
    int mine = group + OWN(lane) * GROUPS;
    own.bias = mine < R ? p[P_BIAS + mine] : 0.0f;
#pragma unroll
    for (int k = 0; k < KO; k++) own.last[k] = k * LANES + lane < NO ? p[P_LAST + k * LANES + lane] : 0.0f;
}

__device__ void store(float (&v)[UNITS][NV], float (&out)[UNITS][KO], float bias, float (&last)[KO], float* p, int group, int lane) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int unit = group + u * GROUPS;
        if (unit >= R) continue;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            int j = PLACE(i, lane);
            if (j < R) p[P_REC + j * R + unit] = v[u][i];
            else if (j < Z) p[(j - R) * R + unit] = v[u][i];
        }
#pragma unroll
        for (int k = 0; k < KO; k++)
            if (k * LANES + lane < NO) p[P_OUT + unit * NO + k * LANES + lane] = out[u][k];
    }
    int mine = group + OWN(lane) * GROUPS;
    if (lane < UNITS && mine < R) p[P_BIAS + mine] = bias;
#pragma unroll
    for (int k = 0; k < KO; k++)
        if (group == 0 && k * LANES + lane < NO) p[P_LAST + k * LANES + lane] = last[k];
}

__device__ void clear(Own& own) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
#pragma unroll
        for (int i = 0; i < NV; i++) own.dv[u][i] = 0.0f;
#pragma unroll
        for (int k = 0; k < KO; k++) own.dout[u][k] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < KO; k++) own.dlast[k] = 0.0f;
    own.dbias = 0.0f;
}

// Writes the states of all timesteps into the rows z. `rates` keeps the activations of leaky units, which
// cannot be recovered from the state.
__device__ __forceinline__ void go_forward(Own& own, float* z, float* rates, const float* noise, float leak, int n_steps, int group, int lane) {
    int mine = group + OWN(lane) * GROUPS;
    bool writes = lane < UNITS && mine < R;
    const float* before = z + lane * VEC;
    float* after = z + ZP + mine;
#if LEAKY
    float state = 0.0f;
#endif
    for (int t = 0; t < n_steps; t++, before += ZP, after += ZP) {
        float heard = own.bias, sums[UNITS], row[NV];
        if (noise != nullptr && mine < R) heard += noise[t * R + mine];
        take(row, before);
#pragma unroll
        for (int u = 0; u < UNITS; u++) sums[u] = product(row, own.v[u], lane == u ? heard : 0.0f);
        float rate = activate(gather(sums, lane));
#if LEAKY
        state = (1.0f - leak) * state + leak * rate;
        if (lane < UNITS) rates[t * ROWS + mine] = rate;
        if (writes) *after = state;
#else
        if (writes) *after = rate;
#endif
        BARRIER;
    }
}

// Computes the outputs of all timesteps; each group computes every GROUPS-th output.
__device__ __forceinline__ void read_out(const float* z, const float* turned, const float* last, float* outputs, int n_steps, int group, int lane) {
    for (int begin = 0; begin < n_steps * NO; begin += GROUPS) {
        bool real = begin + group < n_steps * NO;
        int place = real ? begin + group : 0, t = place / NO, o = place % NO;
        float row[NW], weight[NW];
        take(row, z + (t + 1) * ZP + lane * VEC);
        take(weight, turned + o * RP + lane * VEC);  // the weights are 0 where the row holds inputs
        float found = product(row, weight, 0.0f);
#pragma unroll
        for (int apart = 1; apart < LANES; apart *= 2) found += __shfl_xor_sync(EVERYONE, found, apart);
        if (real && lane == 0) outputs[place] = found + last[o];
    }
}

// Adds one timestep to the gradient of v.
__device__ __forceinline__ void add_outer(Own& own, const float (&row)[NV], const float* drives) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        float drive = drives[u * GROUPS];
#pragma unroll
        for (int i = 0; i < NV; i++) own.dv[u][i] = fmaf(row[i], drive, own.dv[u][i]);
    }
}

// From the gradients of the outputs (`slopes`) to all gradients, last timestep first. The contribution of
// a timestep to the gradient of v is added one timestep later, which hides latency: that timestep waits
// for the gradients of the other units. Its row is loaded before the barrier, so that no shuffle has to
// wait for it.
__device__ __forceinline__ void go_back(
    Own& own, const float* z, const float* rates, const float* slopes, float* sent, float* kept, float leak, int n_steps, int group, int lane) {
    int mine = group + OWN(lane) * GROUPS;
    bool writes = lane < UNITS && mine < R;
    float *later = sent, *now = sent + SENT, row[NV];
    const float *before = z + n_steps * ZP + lane * VEC, *after = z + n_steps * ZP + group;
#if LEAKY
    float carried = 0.0f;
#endif
    if (writes) later[mine] = 0.0f;
    take(row, before);
    BARRIER;
    for (int t = n_steps - 1; t >= 0; t--, after -= ZP) {
        float spoken[NW], states[UNITS], sums[UNITS] = {}, slope = 0.0f;
        take(spoken, later + lane * VEC);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            states[u] = group + u * GROUPS < R ? after[u * GROUPS] : 0.0f;
            if (OWN(lane) == u) slope = slope_of(states[u]);
        }
#if LEAKY
        slope = mine < R ? leak * slope_of(rates[t * ROWS + mine]) : 0.0f;
#endif
#pragma unroll
        for (int k = 0; k < KO; k++) {
            float wrong = k * LANES + lane < NO ? slopes[t * NO + k * LANES + lane] : 0.0f;
            own.dlast[k] += wrong;
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sums[u] = fmaf(wrong, own.out[u][k], sums[u]);
                own.dout[u][k] = fmaf(wrong, states[u], own.dout[u][k]);
            }
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) sums[u] = product(spoken, own.w[u], sums[u]);
        float wanted = gather(sums, lane);
        add_outer(own, row, later + group);
#if LEAKY
        wanted += carried;
        carried = (1.0f - leak) * wanted;
#endif
        float drive = wanted * slope;
        if (writes) {
            now[mine] = drive;
            if (kept != nullptr) kept[t * R + mine] = drive;
        }
        own.dbias += drive;
        before -= ZP;
        take(row, before);
        float* spare = later;
        later = now;
        now = spare;
        BARRIER;
    }
    add_outer(own, row, later + group);
}

// Sums over the block; every thread gets them.
__device__ __forceinline__ float2 over_block(float2 value, float2* shelf) {
#pragma unroll
    for (int apart = 16; apart; apart /= 2) {
        value.x += __shfl_xor_sync(EVERYONE, value.x, apart);
        value.y += __shfl_xor_sync(EVERYONE, value.y, apart);
    }
#if WARPS > 1
    if (threadIdx.x % 32 == 0) shelf[threadIdx.x / 32] = value;
    __syncthreads();
    value = shelf[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) {
        value.x += shelf[warp].x;
        value.y += shelf[warp].y;
    }
#else
    __syncwarp();
#endif
    return value;
}

__device__ __forceinline__ void read_out_weights(Own& own, float* turned, float* last, int group, int lane) {
#pragma unroll
    for (int k = 0; k < KO; k++) {
        int o = k * LANES + lane;
        if (o >= NO) continue;
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (group + u * GROUPS < R) turned[o * RP + group + u * GROUPS] = own.out[u][k];
        if (group == 0) last[o] = own.last[k];
    }
}

#if MODE == 0

enum { PLAIN, MOMENTUM, ADAM };

struct Rule {  // constants of the optimiser for one update
    // `first`, `second`: Adam's bias corrections.
    float rate, momentum, beta1, beta2, eps, scale, first, second;
};

template <int KIND>
__device__ __forceinline__ float renewed(float value, float slope, float* state, const Rule& rule) {
    slope *= rule.scale;
    if (KIND == ADAM) {
        float mean = rule.beta1 * state[0] + (1.0f - rule.beta1) * slope;
        float square = rule.beta2 * state[THREADS * SLOTS] + (1.0f - rule.beta2) * slope * slope;
        state[0] = mean;
        state[THREADS * SLOTS] = square;
        return value - rule.rate * (mean * rule.first) / (sqrtf(square * rule.second) + rule.eps);
    }
    if (KIND == MOMENTUM) {
        slope += rule.momentum * state[0];
        state[0] = slope;
    }
    return value - rule.rate * slope;
}

template <int KIND>
__device__ __forceinline__ void renew(Own& own, float* state, const Rule& rule, int group, int lane, float* square) {
    state += threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int unit = group + u * GROUPS;
        float* here = state + u * (NV + KO) * THREADS;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            own.v[u][i] = renewed<KIND>(own.v[u][i], own.dv[u][i], here + i * THREADS, rule);
            if (unit < R && PLACE(i, lane) < R) square[PLACE(i, lane) * WIDE + unit] = own.v[u][i];
        }
#pragma unroll
        for (int k = 0; k < KO; k++) own.out[u][k] = renewed<KIND>(own.out[u][k], own.dout[u][k], here + (NV + k) * THREADS, rule);
    }
    state += UNITS * (NV + KO) * THREADS;
    own.bias = renewed<KIND>(own.bias, own.dbias, state, rule);
#pragma unroll
    for (int k = 0; k < KO; k++) own.last[k] = renewed<KIND>(own.last[k], own.dlast[k], state + (1 + k) * THREADS, rule);
}

// hyper: rate, momentum, beta1, beta2, eps, clip, leak, 1 for Adam.
__device__ __forceinline__ void update(Own& own, float* state, const float* hyper, float length, int number, int group, int lane, float* square) {
    Rule rule = {hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], fminf(1.0f, hyper[5] / (length + 1e-6f)), 1.0f, 1.0f};
    if (hyper[7] > 0.0f) {
        rule.first = 1.0f / (1.0f - powf(rule.beta1, (float)number));
        rule.second = 1.0f / (1.0f - powf(rule.beta2, (float)number));
        renew<ADAM>(own, state, rule, group, lane, square);
    } else if (rule.momentum > 0.0f) {
        renew<MOMENTUM>(own, state, rule, group, lane, square);
    } else {
        renew<PLAIN>(own, state, rule, group, lane, square);
    }
}

// This thread's part of the squared norm of the gradient.
__device__ __forceinline__ float length_of_gradient(Own& own, int group, int lane) {
    float sums[4] = {lane < UNITS ? own.dbias * own.dbias : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < KO; k++)
        if (group == 0) sums[1] = fmaf(own.dlast[k], own.dlast[k], sums[1]);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
#pragma unroll
        for (int i = 0; i < NV; i++) sums[i % 4] = fmaf(own.dv[u][i], own.dv[u][i], sums[i % 4]);
#pragma unroll
        for (int k = 0; k < KO; k++) sums[k % 4] = fmaf(own.dout[u][k], own.dout[u][k], sums[k % 4]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

__device__ __forceinline__ void fetch_example(float* inputs, float* targets, const float* all_inputs, const float* all_targets, int example, int n_steps) {
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) fetch(inputs + i, all_inputs + (long long)example * n_steps * NI + i);
    int wide = CROSS ? 1 : NO;
    for (int i = threadIdx.x; i < n_steps * wide; i += THREADS) fetch(targets + i, all_targets + (long long)example * n_steps * wide + i);
    asm volatile("cp.async.commit_group;");
}

// Copies the inputs into the rows z, after the states of their timestep.
__device__ __forceinline__ void lay_inputs(float* z, const float* inputs, int n_steps) {
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) z[i / NI * ZP + R + i % NI] = inputs[i];
}

// Replaces the outputs by the gradients of the loss; returns this thread's part of the loss.
__device__ __forceinline__ float compare(float* outputs, const float* targets, const float* mask, float norm, int n_steps) {
    float loss = 0.0f;
#if CROSS
    for (int t = threadIdx.x; t < n_steps; t += THREADS) {
        float* row = outputs + t * NO;
        int wanted = (int)targets[t];
        float most = row[0], sum = 0.0f, weight = mask == nullptr ? norm : norm * mask[t];
        for (int o = 1; o < NO; o++) most = fmaxf(most, row[o]);
        for (int o = 0; o < NO; o++) sum += expf(row[o] - most);
        loss += weight * (logf(sum) + most - row[wanted]);
        for (int o = 0; o < NO; o++) row[o] = weight * (expf(row[o] - most) / sum - (o == wanted ? 1.0f : 0.0f));
    }
#else
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) {
        float weight = mask == nullptr ? norm : norm * mask[i / NO];
        float apart = outputs[i] - targets[i];
        loss += weight * apart * apart;
        outputs[i] = 2.0f * weight * apart;
    }
#endif
    return loss;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(float* weights, float* states, const float* hypers, const float* all_inputs, const float* all_targets, const float* masks, const int* orders,
      const float* norms, float* losses, int n_steps, int updates, int batch, int before, int examples, int has_mask, int shared_data) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    float* square = z + (n_steps + 1) * ZP;
    float* turned = square + R * WIDE + (4 - R * WIDE % 4) % 4;
    float* sent = turned + NO * RP;
    float2* shelf = reinterpret_cast<float2*>(sent + 2 * SENT);
    float* rates = reinterpret_cast<float*>(shelf + WARPS);
    float* outputs = rates + (LEAKY ? n_steps * ROWS : 0);
    float* inputs = outputs + n_steps * NO;
    float* targets = inputs + 2 * n_steps * NI;
    float* last = targets + 2 * n_steps * NO;
    float* hyper = last + NO;

    int net = blockIdx.x, group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int data = shared_data ? 0 : net;
    weights += (long long)net * P_ALL;
    states += (long long)net * 2 * THREADS * SLOTS;
    norms += (long long)net * updates;
    losses += (long long)net * updates;
    all_inputs += (long long)data * examples * n_steps * NI;
    all_targets += (long long)data * examples * n_steps * (CROSS ? 1 : NO);
    const int* order = orders + (long long)net * updates * batch;
    int example = order[0];
    fetch_example(inputs, targets, all_inputs, all_targets, example, n_steps);
    if (threadIdx.x < 8) hyper[threadIdx.x] = hypers[net * 8 + threadIdx.x];
    for (int i = threadIdx.x; i < (n_steps + 1) * ZP; i += THREADS) z[i] = 0.0f;
    for (int i = threadIdx.x; i < R * WIDE; i += THREADS) square[i] = 0.0f;
    for (int i = threadIdx.x; i < NO * RP + 2 * SENT; i += THREADS) turned[i] = 0.0f;
    Own own;
    load(own, weights, group, lane);
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    lay_inputs(z, inputs, n_steps);
    read_out_weights(own, turned, last, group, lane);
    __syncthreads();
    int side = 0;
    for (int number = 0; number < updates; number++) {
        float2 found = make_float2(0.0f, 0.0f);  // squared norm of the gradient, loss
        float norm = norms[number];
        clear(own);
        for (int member = 0; member < batch; member++) {
            int place = number * batch + member, next = order[min(place + 1, updates * batch - 1)];
            go_forward(own, z, rates, nullptr, hyper[6], n_steps, group, lane);
            fetch_example(inputs + (side ^ 1) * n_steps * NI, targets + (side ^ 1) * n_steps * NO, all_inputs, all_targets, next, n_steps);
            read_out(z, turned, last, outputs, n_steps, group, lane);
            BARRIER;
            const float* mask = has_mask ? masks + ((long long)data * examples + example) * n_steps : nullptr;
            found.y += compare(outputs, targets + side * n_steps * NO, mask, norm, n_steps);
            go_back(own, z, rates, outputs, sent, nullptr, hyper[6], n_steps, group, lane);
            asm volatile("cp.async.wait_all;");
            example = next;
            side ^= 1;
            if (member + 1 < batch) {  // after the last example the update has its own barriers
                BARRIER;
                lay_inputs(z, inputs + side * n_steps * NI, n_steps);
                BARRIER;
            }
        }
        found.x = length_of_gradient(own, group, lane);
        found = over_block(found, shelf);
        if (threadIdx.x == 0) losses[number] = found.y;
        update(own, states, hyper, sqrtf(found.x), before + number + 1, group, lane, square);
        read_out_weights(own, turned, last, group, lane);
        lay_inputs(z, inputs + side * n_steps * NI, n_steps);
        BARRIER;
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (group + u * GROUPS < R) take(own.w[u], square + (group + u * GROUPS) * WIDE + lane * VEC);
    }
    store(own.v, own.out, own.bias, own.last, weights, group, lane);
}

#else  // modes 1 and 2, for autograd: one example of a batch

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(const float* weights, const float* all_inputs, const float* noises, float* all_outputs, float* all_states, float* all_rates, const float* all_slopes,
      float* gradients, float* drives, int n_steps, int batch, int has_noise) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    float* turned = z + (n_steps + 1) * ZP;
    float* sent = turned + NO * RP;
    float* rates = sent + 2 * SENT;
    float* outputs = rates + (LEAKY ? n_steps * ROWS : 0);
    float* last = outputs + n_steps * NO;

    int example = blockIdx.x, group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    for (int i = threadIdx.x; i < (n_steps + 1) * ZP; i += THREADS) z[i] = 0.0f;
    for (int i = threadIdx.x; i < NO * RP + 2 * SENT; i += THREADS) turned[i] = 0.0f;
    Own own;
    load(own, weights, group, lane);
    clear(own);
    __syncthreads();
    read_out_weights(own, turned, last, group, lane);
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) z[i / NI * ZP + R + i % NI] = all_inputs[((i / NI) * batch + example) * NI + i % NI];
    float* states = all_states + (long long)example * n_steps * R;
    float leak = weights[P_ALL];
#if MODE == 1
    __syncthreads();
    go_forward(own, z, rates, has_noise ? noises + (long long)example * n_steps * R : nullptr, leak, n_steps, group, lane);
    read_out(z, turned, last, outputs, n_steps, group, lane);
    for (int i = threadIdx.x; i < n_steps * R; i += THREADS) states[i] = z[(i / R + 1) * ZP + i % R];
    if (LEAKY)
        for (int i = threadIdx.x; i < n_steps * ROWS; i += THREADS) all_rates[(long long)example * n_steps * ROWS + i] = rates[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) all_outputs[((i / NO) * batch + example) * NO + i % NO] = outputs[i];
#else
    for (int i = threadIdx.x; i < n_steps * R; i += THREADS) z[(i / R + 1) * ZP + i % R] = states[i];
    if (LEAKY)
        for (int i = threadIdx.x; i < n_steps * ROWS; i += THREADS) rates[i] = all_rates[(long long)example * n_steps * ROWS + i];
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) outputs[i] = all_slopes[((i / NO) * batch + example) * NO + i % NO];
    __syncthreads();
    go_back(own, z, rates, outputs, sent, drives + (long long)example * n_steps * R, leak, n_steps, group, lane);
    store(own.dv, own.dout, own.dbias, own.dlast, gradients + (long long)example * P_ALL, group, lane);
#endif
}

#endif
